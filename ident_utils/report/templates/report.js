// Lets every column of the table be sorted, by mouse and by keyboard; without this script the table is just a table.
document.querySelectorAll("table.sortable").forEach((table) => {
  const body = table.tBodies[0];
  const status = document.querySelector(".sorted");
  const key = (row, column) => {
    const cell = row.cells[column];
    if (!("sort" in cell.dataset)) return cell.textContent.trim();
    return cell.dataset.sort === "" ? -Infinity : Number(cell.dataset.sort);
  };
  const compare = (a, b) => typeof a === "number" ? (a > b) - (a < b) : a.localeCompare(b, "en");
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    if ("unsortable" in head.dataset) return;
    const name = head.textContent;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      [...table.tHead.rows[0].cells].forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort((a, b) =>
        compare(key(a, column), key(b, column)) * (down ? -1 : 1));
      body.append(...rows);
      status.textContent = `Sorted by ${name.toLowerCase()}, ${down ? "descending" : "ascending"}`;
    });
  });
});
