// The inbox of definitions: keys. They only move the focus; deciding is always a form that a person sends.
(() => {
  "use strict";
  const entries = [...document.querySelectorAll(".sn-entry")];
  const keys = document.getElementById("keys");
  const here = () => entries.findIndex((entry) => entry.contains(document.activeElement));
  const go = (place) => {
    const entry = entries[Math.max(0, Math.min(entries.length - 1, place))];
    if (entry) {
      entry.focus();
      entry.scrollIntoView({ block: "nearest" });
    }
  };
  const press = (key) => {
    const entry = entries[Math.max(0, here())];
    const button = entry && entry.querySelector(`[data-key="${key}"]`);
    if (button) button.focus();
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
    if (event.target.matches("input:not([type=checkbox]), select, textarea")) return;
    if (event.key === "j") go(here() + 1);
    else if (event.key === "k") go(here() - 1);
    else if (["a", "r", "v"].includes(event.key)) press(event.key);
    else if (event.key === "/") document.getElementById("search").focus();
    else return;
    event.preventDefault();
  });
})();
