// Parts of the page that something goes on in look again every second, until the server says that it has ended (286).
// A part with data-stay keeps what it was told last; else the whole page is loaded again. "live" has the parts below an element begin.
// Only a part that has changed is put in, so that a button keeps its focus and a selected text stays selected.
(() => {
  const keepUp = (box) => {
    let shown = "";
    const look = async () => {
      if (!box.isConnected) return;
      try {
        const answer = await fetch(box.dataset.live, { headers: { Accept: "text/html" }, credentials: "same-origin" });
        if (answer.status === 286 && box.dataset.stay !== undefined) { box.innerHTML = await answer.text(); return; }
        if (answer.status === 286) { location.reload(); return; }
        if (answer.status === 200 && !answer.redirected) {
          const text = await answer.text();
          if (text !== shown) box.innerHTML = shown = text;
          const form = document.getElementById("settle");
          if (form) form.hidden = !document.querySelector("[data-live] [form=settle]");
        } else if (answer.status === 404 || answer.redirected) return;  // gone, or logged out
      } catch { /* the site may be restarting: look again */ }
      setTimeout(look, 1000);
    };
    setTimeout(look, 1000);
  };
  const begin = (within) => within.querySelectorAll("[data-live]").forEach(keepUp);
  document.addEventListener("live", (event) => begin(event.target));
  begin(document);
})();
