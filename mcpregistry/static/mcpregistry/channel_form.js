// Shows only the settings that belong to the chosen kind of channel. Without this script all are shown.
document.addEventListener("DOMContentLoaded", () => {
  const kind = document.getElementById("id_kind");
  if (!kind) return;
  const show = () => {
    for (const set of document.querySelectorAll("fieldset[class*='sn-kind-']"))
      set.classList.toggle("sn-hidden", !set.classList.contains(`sn-kind-${kind.value}`));
  };
  kind.addEventListener("change", show);
  show();
});
