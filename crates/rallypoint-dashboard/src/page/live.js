// The stream of views. It comes back by itself, and rests while nobody looks.

const HIDDEN_FOR = 60_000;
const FIRST_PAUSE = 1_000;
const LONGEST_PAUSE = 15_000;

export class Live {
  #source = null;
  #query;
  #handlers;
  #timer = 0;
  #rest = 0;
  #pause = FIRST_PAUSE;

  /** `handlers` has a function for each kind of message, and `lost` for when the dashboard itself is away. */
  constructor(query, handlers) {
    this.#query = query;
    this.#handlers = handlers;
    document.addEventListener("visibilitychange", this.#seen);
    this.#open();
  }

  end() {
    document.removeEventListener("visibilitychange", this.#seen);
    clearTimeout(this.#rest);
    this.#shut();
  }

  #seen = () => {
    clearTimeout(this.#rest);
    if (document.hidden) this.#rest = setTimeout(() => this.#shut(), HIDDEN_FOR);
    else if (!this.#source) this.#open();
  };

  #shut() {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = null;
  }

  #open() {
    this.#shut();
    const source = new EventSource(`api/live${this.#query}`);
    this.#source = source;
    for (const kind of ["hello", "etcd", "runs", "run", "change"]) {
      source.addEventListener(kind, (event) => {
        this.#pause = FIRST_PAUSE;
        const data = JSON.parse(event.data);
        this.#handlers[kind]?.(data);
      });
    }
    source.onerror = () => {
      this.#handlers.lost();
      // The browser tries again by itself only if it was connected.
      this.#shut();
      this.#timer = setTimeout(() => this.#open(), this.#pause);
      this.#pause = Math.min(this.#pause * 2, LONGEST_PAUSE);
    };
  }
}
