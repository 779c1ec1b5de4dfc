// Buttons that tick all boxes of one name, or none when all are ticked. Without this script each is ticked by itself.
(() => {
  for (const button of document.querySelectorAll("[data-tick]")) {
    const boxes = [...document.querySelectorAll(`input[name="${button.dataset.tick}"]`)];
    button.hidden = boxes.length < 2;
    button.addEventListener("click", () => {
      const tick = !boxes.every((box) => box.checked);
      for (const box of boxes) box.checked = tick;
    });
  }
})();
