"""The README and the documentation's site as a browser shows them, for docs/pictures.

`python -m support.harness.screenshots`, with `tests` on the path, writes the pictures again.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import markdown
from support.harness.browser import ROOT, SIZE, browsing, build_site, chromedriver, serving

PICTURES = ROOT / "docs" / "pictures"
STYLE = """
body { font: 16px/1.5 sans-serif; max-width: 900px; margin: 30px auto; color: #1f2328; }
pre, code { background: #f6f8fa; font-size: 85%; }
pre { padding: 12px; overflow: auto; }
table { border-collapse: collapse; }
td, th { border: 1px solid #d1d9e0; padding: 4px 12px; }
h1, h2 { border-bottom: 1px solid #d1d9e0; padding-bottom: 6px; }
img { max-width: 100%; }
"""


def readme_page() -> str:
    """The README as HTML, in colours like those of a host of repositories."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    body = markdown.markdown(text, extensions=["tables", "fenced_code", "sane_lists"])
    return f'<!doctype html><meta charset="utf-8"><style>{STYLE}</style><body>{body}</body>'


def main() -> None:
    """Build the site, open the pages, write the pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build_site(folder)
        (folder / "readme.html").write_text(readme_page(), encoding="utf-8")
        shutil.copytree(PICTURES, folder / "docs" / "pictures")
        with serving(folder) as address, browsing(chromedriver()) as browser:
            pages = {"readme": "readme.html", "site": "index.html", "errors": "errors.html"}
            for picture, page in pages.items():
                browser.set_window_size(*SIZE)
                browser.get(f"{address}/{page}")
                if picture == "readme":
                    height = browser.execute_script("return document.documentElement.scrollHeight")
                    browser.set_window_size(SIZE[0], int(height))
                browser.save_screenshot(str(PICTURES / f"shown_{picture}.png"))


if __name__ == "__main__":
    main()
