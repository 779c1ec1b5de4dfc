// The page Connect: what was chosen is shown at once, without losing the place; buttons copy the text that they name.
(() => {
  const copied = async (text) => {
    try { await navigator.clipboard.writeText(text); return true; } catch { /* only pages over HTTPS or of this machine may */ }
    const box = Object.assign(document.createElement("textarea"), { value: text, readOnly: true, className: "sn-unseen" });
    document.body.append(box);
    box.select();
    try { return document.execCommand("copy"); } finally { box.remove(); }
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const text = document.getElementById(button.dataset.copy).textContent;
    const word = button.querySelector("[data-word]");
    word.textContent = await copied(text) ? "Copied" : "Select the text and copy it";
    setTimeout(() => { word.textContent = "Copy"; }, 2500);
  });
  const ready = (within) => within.querySelectorAll("[data-copy]").forEach((button) => { button.hidden = false; });
  ready(document);

  const form = document.getElementById("choose");
  const shown = document.getElementById("shown");
  if (!form || !shown) return;
  form.querySelector("[type=submit]").hidden = true;
  let asked = 0;
  form.addEventListener("change", async () => {
    const address = `${location.pathname}?${new URLSearchParams(new FormData(form))}`;
    const mine = ++asked;
    shown.setAttribute("aria-busy", "true");
    try {
      const answer = await fetch(address, { headers: { Accept: "text/html" }, credentials: "same-origin" });
      const part = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("shown");
      if (mine !== asked) return;
      if (!answer.ok || !part) { location.assign(address); return; }
      shown.replaceChildren(...part.childNodes);
      history.replaceState(null, "", address);
      ready(shown);
      shown.dispatchEvent(new Event("live", { bubbles: true }));
    } catch { location.assign(address); } finally { if (mine === asked) shown.removeAttribute("aria-busy"); }
  });
})();
