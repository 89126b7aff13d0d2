// Numbers and verdicts in words. The numbers are those of `diagnose`; so is the rule of each phrase.
"use strict";

function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size < 1e-3 ? value.toExponential(1) : value.toFixed(size < 10 ? 4 : 1);
  return text.replaceAll("-", "−");
}

function score(value) {
  return value.toFixed(Math.abs(value) < 100 ? 2 : 0).replace("-", "−");
}

function threeDigits(value) {
  return String(Number(Math.abs(value).toPrecision(3)));
}

function causeInWords({ kind, amount }, wrongTimes) {
  const size = threeDigits(amount);
  if (kind === "rows") return `check t = ${wrongTimes} (the others agree)`;
  if (kind === "factor") {
    return `b is about ${amount < 0 ? "−" : ""}${size} times what the prediction says, check its units`;
  }
  if (kind === "shift") {
    return `b comes about ${size} ${size === "1" ? "step" : "steps"} of time too ${amount > 0 ? "late" : "early"}`;
  }
  return `b is about ${size} too ${amount > 0 ? "large" : "small"} at every time`;
}

function causesOf(numbers, { causes, limits }) {
  // (4, 3): amount, misfit, whether it holds
  const found = causes
    .map((kind, i) => {
      const [amount, misfit, holds] = numbers.slice(3 * i, 3 * i + 3);
      return { kind, amount, misfit, holds: holds > 0 };
    })
    .filter((cause) => cause.holds);
  found.sort((one, other) => one.misfit - other.misfit);
  return found.filter((cause) => cause.misfit <= limits.alike * found[0].misfit);
}

function verdict({ wrong, z_own, z_full, causes, move, share }, times, facts) {
  const rows = wrong.length;
  const which = times.filter((_, i) => wrong[i] > 0);
  const quadrature =
    share[0] < facts.limits.much
      ? ""
      : ` ${Math.round(100 * share[0])} % of the variance that the update would need is the error ` +
        "of the sum over points that stands for the integral: give the law noise.";
  if (which.length) {
    const named = which
      .slice(0, 8)
      .map((t) => +t.toPrecision(3))
      .join(", ");
    const more = which.length > 8 ? ` and ${which.length - 8} more` : "";
    const found = causesOf(causes, facts);
    const why = found.length
      ? found.map((cause) => causeInWords(cause, named + more)).join("; or ")
      : "no factor, shift in time or constant explains it";
    return {
      wrong: true,
      text: `b does not agree with the prediction at ${which.length} of ${rows} times: ${why}.`,
    };
  }
  const [own, full] = [z_own, z_full].map((z) => Math.max(...z.map(Math.abs)));
  if (own > facts.limits.stated || move[0] > facts.limits.far) {
    return {
      wrong: true,
      text:
        "b agrees with the prediction only if the errors of many points are shared: its total less " +
        `b is up to ${own.toFixed(1)} standard deviations by the stated variances, and up to ` +
        `${full.toFixed(1)} if all points err together. If they are, widen the prior. If not, b is ` +
        `wrong.${quadrature}`,
    };
  }
  const most = own.toFixed(1);
  const text = `b agrees with the prediction: at all ${rows} times its total less b is at most ${most} standard deviations.`;
  return { wrong: false, text: text + quadrature };
}
