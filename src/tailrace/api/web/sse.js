// Server-sent events from text that may be cut anywhere, also inside a line's end.

export class EventParser {
  constructor() {
    this.rest = "";
    this.data = [];
    this.afterReturn = false; // a \n that comes now belongs to the \r before it
  }

  /** The data of each event that this text completes. Comments and other fields are skipped. */
  feed(text) {
    const events = [];
    if (this.afterReturn && text.startsWith("\n")) text = text.slice(1);
    if (text) this.afterReturn = text.endsWith("\r");
    const lines = (this.rest + text).split(/\r\n|\r|\n/);
    this.rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (this.data.length) events.push(this.data.join("\n"));
        this.data = [];
      } else if (line === "data" || line.startsWith("data:")) {
        this.data.push(line.slice(5).replace(/^ /, ""));
      }
    }
    return events;
  }
}
