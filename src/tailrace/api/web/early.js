// The chosen theme, before anything is painted. Without a choice the system's holds.
{
  const chosen = localStorage.getItem("tailrace.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
