// Shows only the settings that belong to the chosen transport. Without this script all are shown.
document.addEventListener("DOMContentLoaded", () => {
  const transport = document.getElementById("id_transport");
  if (!transport) return;
  const show = () => {
    const local = transport.value === "stdio";
    for (const set of document.querySelectorAll("fieldset.sn-local")) set.classList.toggle("sn-hidden", !local);
    for (const set of document.querySelectorAll("fieldset.sn-remote")) set.classList.toggle("sn-hidden", local);
  };
  transport.addEventListener("change", show);
  show();
});
