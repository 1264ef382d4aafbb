// What is looked at stands in the address, so that it can be loaded again, kept, and sent to somebody else.

/** What the address says of it; empty where it says nothing. */
export function asked(name) {
  return new URLSearchParams(location.search).get(name) ?? "";
}

/** Puts it there. That is no step for the button that goes back. */
export function keep(name, value) {
  const url = new URL(location.href);
  if (value) url.searchParams.set(name, value);
  else url.searchParams.delete(name);
  if (url.href !== location.href) history.replaceState(history.state, "", url);
}
