// Keys that every page has: "?" shows them, "g" and a letter go to a page of the navigation.
(() => {
  "use strict";
  const PATIENCE = 1500; // milliseconds from "g" to its letter
  let going = 0;
  const typing = (place) => place instanceof Element && place.closest("input:not([type=checkbox]):not([type=radio]), select, textarea, [contenteditable=true]");

  // Before the page's own keys: the letter after "g" is none of them.
  document.addEventListener("keydown", (event) => {
    const keys = document.getElementById("keys");
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || typing(event.target)) return;
    if (keys?.open) return;
    if (event.key === "?") {
      keys?.showModal();
    } else if (going > performance.now() && /^[a-z]$/.test(event.key)) {
      document.querySelector(`[data-go="${event.key}"]`)?.click();
      going = 0;
    } else if (event.key === "g") {
      going = performance.now() + PATIENCE;
    } else {
      going = 0;
      return;
    }
    event.preventDefault();
    event.stopImmediatePropagation();
  }, true);

  document.addEventListener("click", (event) => {
    if (event.target instanceof Element && event.target.closest("#help")) document.getElementById("keys")?.showModal();
  });
})();
