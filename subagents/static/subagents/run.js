// The timeline of an open run looks again every second until the run has ended.
(() => {
  const box = document.getElementById("timeline");
  if (!box || !box.dataset.live) return;
  const look = async () => {
    try {
      const answer = await fetch(box.dataset.live, { headers: { Accept: "text/html" }, credentials: "same-origin" });
      if (answer.status === 404) return;
      box.innerHTML = await answer.text();
      if (answer.status === 286) { location.reload(); return; }
    } catch { /* the site may be restarting: look again */ }
    setTimeout(look, 1000);
  };
  setTimeout(look, 1000);
})();
