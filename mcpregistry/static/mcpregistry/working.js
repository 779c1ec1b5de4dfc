// A form that was sent, and a link that was followed, says so at once, however long its answer takes; a form is not sent again.
// data-working is the word for it; data-download marks a link whose answer is a file, so that the page stays.
(() => {
  const rest = (form, pressed) => {
    const shown = pressed?.matches("button") && pressed.getClientRects().length ? pressed : null;
    const buttons = [...form.elements].filter((each) => each.type === "submit");
    for (const each of buttons) each.setAttribute("aria-disabled", "true");
    (shown ?? form).setAttribute("aria-busy", "true");
    if (!shown) return;
    const label = [...shown.childNodes].findLast((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (label) [shown.dataset.words, label.data] = [label.data, form.dataset.working ?? "Working…"];
  };
  const MARK = "slipsnisse-download"; // a cookie that the answer takes away, or its end after a minute
  const LONGEST = 60_000;
  const wake = () => {
    for (const link of document.querySelectorAll("a[aria-busy]")) link.removeAttribute("aria-busy");
    for (const form of document.querySelectorAll("form[data-sent]")) {
      delete form.dataset.sent;
      for (const each of [form, ...form.elements]) {
        each.removeAttribute("aria-busy");
        if (each.type === "submit") each.removeAttribute("aria-disabled");
        const label = each.dataset.words && [...each.childNodes].findLast((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
        if (label) label.data = each.dataset.words;
        delete each.dataset.words;
      }
    }
  };
  addEventListener("submit", (event) => {
    const form = event.target;
    if (form.dataset.sent) event.preventDefault();
    if (event.defaultPrevented || form.method === "dialog" || (event.submitter?.formTarget || form.target)) return;
    form.dataset.sent = "yes";
    // After the browser has read the form: what it reads is not touched, and a listener behind us may still have stopped it.
    setTimeout(() => { if (event.defaultPrevented) delete form.dataset.sent; else rest(form, event.submitter ?? form.querySelector("button[type=submit]")); });
  });
  const leadsAway = (link, event) =>
    !(event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey)
    && (!link.target || link.target === "_self") && !link.hasAttribute("download") && link.origin === location.origin
    && !(link.hash && link.href.split("#")[0] === location.href.split("#")[0]);
  const waitForFile = (link) => {
    document.cookie = `${MARK}=1; path=/; max-age=${LONGEST / 1000}; samesite=lax`;
    const look = setInterval(() => {
      if (document.cookie.includes(`${MARK}=`)) return;
      clearInterval(look);
      link.removeAttribute("aria-busy");
    }, 100);
  };
  addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    if (!link || !leadsAway(link, event)) return;
    const isFile = "download" in link.dataset;
    if (isFile && link.ariaBusy) { event.preventDefault(); return; }
    link.setAttribute("aria-busy", "true");
    if (isFile) waitForFile(link); else setTimeout(() => link.removeAttribute("aria-busy"), LONGEST);
  });
  addEventListener("pageshow", wake); // back from another page, it may be sent again
  addEventListener("keydown", (event) => { if (event.key === "Escape") wake(); }); // which stops the loading
})();
