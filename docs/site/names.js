// Long names may break behind a dot or an underscore: all of them in the table of contents, and in
// tables those that no column has room for, such as the name of a test.
for (const place of document.querySelectorAll("td code, .md-sidebar--secondary .md-ellipsis")) {
  const name = place.textContent.trim();
  const isLong = place.tagName !== "CODE" || name.length > 40;
  if (isLong && place.childElementCount === 0 && /^\w+[._][\w.]*$/.test(name)) {
    place.innerHTML = name.replace(/[._]/g, "$&<wbr>");
  }
}
