// What an invitation's link holds behind "#" goes into the form and out of the address.
(() => {
  "use strict";
  const code = document.getElementById("id_code");
  if (!code) return;
  if (location.hash.length > 1) {
    code.value = decodeURIComponent(location.hash.slice(1));
    history.replaceState(null, "", location.pathname);
  }
  if (code.value) {
    document.getElementById("code-field").hidden = true;
    document.getElementById("id_username").focus();
  }
})();
