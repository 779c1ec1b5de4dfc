// Every page outside the admin: forms that filter as soon as something is chosen.
document.documentElement.classList.add("js");
for (const form of document.querySelectorAll("form[role=search]")) {
  form.addEventListener("change", (event) => {
    if (event.target.matches("select, input[type=date], input[list]")) form.requestSubmit();
  });
}
