// Dates as days since 1970 and microseconds since midnight, without time zones.

const DAY = 86_400_000;
export const MICROS_OF_DAY = 86_400_000_000;
const TIME = "(?:[T ](?<time>\\d{2}:\\d{2}(?::\\d{2}(?:\\.\\d{1,6})?)?))?$";

// Dates in CSV files that are recognised without being asked for.
export const ISO_TIME = new RegExp("^(?<year>\\d{4})-(?<month>\\d{2})-(?<day>\\d{2})" + TIME);

export const NOTATIONS = {
  "year-month-day": new RegExp("^(?<year>\\d{4})[-/.](?<month>\\d{1,2})[-/.](?<day>\\d{1,2})" + TIME),
  "day/month/year": new RegExp("^(?<day>\\d{1,2})[-/.](?<month>\\d{1,2})[-/.](?<year>\\d{4})" + TIME),
  "month/day/year": new RegExp("^(?<month>\\d{1,2})[-/.](?<day>\\d{1,2})[-/.](?<year>\\d{4})" + TIME),
};
export const EXAMPLES = {
  "year-month-day": "2024-03-31",
  "day/month/year": "31/03/2024",
  "month/day/year": "03/31/2024",
};

// The date of a cell; null if it is none in this notation.
export function parseDate(cell, pattern) {
  const match = pattern.exec(cell);
  if (!match) return null;
  const [year, month, day] = ["year", "month", "day"].map((name) => Number(match.groups[name]));
  const days = daysOf(year, month, day);
  const [hour, minute, second = "0"] = (match.groups.time ?? "00:00").split(":");
  if (days === null || hour > 23 || minute > 59 || Number(second) >= 60) return null;
  const [whole, fraction = ""] = second.split(".");
  const micros = ((Number(hour) * 60 + Number(minute)) * 60 + Number(whole)) * 1e6 + Number(fraction.padEnd(6, "0"));
  return { days, micros };
}

function daysOf(year, month, day) {
  const date = new Date(0);
  date.setUTCFullYear(year, month - 1, day);
  const same = date.getUTCFullYear() === year && date.getUTCMonth() === month - 1 && date.getUTCDate() === day;
  return same ? Math.floor(date.getTime() / DAY) : null;
}

// Days since the first of January of the same year.
export function dayOfYear(days) {
  return days - daysOf(new Date(days * DAY).getUTCFullYear(), 1, 1);
}

export const secondsOf = ({ days, micros }) => (days * MICROS_OF_DAY + micros) / 1e6;
