// What the admin's theme keeps in inline expressions that need eval, for Alpine's build without it.
// That build looks names up only in the data of the page, so the theme's functions are given to it by name.
document.addEventListener("alpine:init", () => {
  const stored = "sidebarDesktopOpen";

  // All that the theme's expressions may know of the window: where it is, and pages of this site to go to.
  const address = {
    get pathname() { return location.pathname; },
    get search() { return location.search; },
    get hash() { return location.hash; },
    set href(to) { if (new URL(to, location.href).origin === location.origin) location.assign(to); },
  };

  Alpine.data("theme", (chosen) => ({ ...theme(chosen), window: { location: address } }));
  Alpine.data("searchForm", searchForm);
  Alpine.data("searchCommand", searchCommand);

  Alpine.data("shell", () => ({
    activeTab: "",
    sidebarMobileOpen: false,
    sidebarDesktopOpen: localStorage.getItem(stored) !== "0",
    init() {
      this.activeTab = getCurrentTab() || this.$el.dataset.tab;
      this.$watch(stored, (open) => localStorage.setItem(stored, open ? "1" : "0"));
    },
  }));

  Alpine.data("searchDropdown", () => ({
    ...searchDropdown(),
    items: () => document.querySelectorAll("#search-results a"), // Unfold counts list items, of which it makes none
    maxItem() { return this.items().length; },
    begin() { this.openSearchResults = true; this.currentIndex = 0; },
    leave() {
      const field = this.$refs.searchInput;
      this.openSearchResults = false;
      if (field.value === "") field.blur(); else field.value = "";
    },
    selectItem() {
      this.items()[this.currentIndex - 1]?.click();
    },
  }));
});

// A page is hidden until Alpine has begun, so what the browser was to focus could not be.
document.addEventListener("alpine:initialized", () => {
  setTimeout(() => { if (document.activeElement === document.body) document.querySelector("[autofocus]")?.focus(); });
});

// Fields that other people's scripts build are named after their labels, which those leave to the eye alone.
function nameBuiltFields() {
  for (const built of document.querySelectorAll(".select2-container")) {
    const field = built.previousElementSibling;
    const label = field?.labels?.[0];
    if (!label) continue;
    label.id ||= `${field.id}-label`;
    const shown = built.querySelector(".select2-selection__rendered");
    const one = built.querySelector(".select2-selection--single");
    one?.setAttribute("aria-labelledby", `${label.id} ${shown.id}`);
    built.querySelector(".select2-search__field")?.setAttribute("aria-labelledby", label.id);
    if (one) shown.removeAttribute("role"), shown.removeAttribute("aria-readonly");
    else shown?.setAttribute("role", "presentation"); // a list with more than its items in it
  }
  for (const mark of document.querySelectorAll(".help-tooltip[aria-label]")) mark.setAttribute("role", "img");
}
addEventListener("load", () => setTimeout(nameBuiltFields)); // after those scripts, which wait for the same
document.addEventListener("formset:added", () => setTimeout(nameBuiltFields));
