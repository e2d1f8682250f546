// A browser gives no Worker to a page that was opened as a file, and the search is a Worker. Here
// it runs in a hidden frame of the page instead. The theme's plugin `offline` would load such a
// script from another host; it looks for "iframe-worker" in the names of the polyfills.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      // Or Firefox puts an empty document in the place of this one later.
      inside.document.open();
      inside.document.write("<!doctype html><body>");
      inside.document.close();
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      const loaded = new Promise((done) => script.addEventListener("load", done));
      script.src = address;
      inside.document.body.append(script);
      this.postMessage = (data) =>
        loaded.then(() => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
