// The admin keeps the chosen theme in localStorage; the other pages follow it before the first paint.
(() => {
  let chosen = "auto";
  try {
    chosen = JSON.parse(localStorage.getItem("adminTheme") ?? '"auto"');
  } catch {
    // Storage is switched off, or holds something else: as the system likes it.
  }
  const dark = chosen === "dark" || (chosen !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.classList.add(dark ? "dark" : "light");
})();
