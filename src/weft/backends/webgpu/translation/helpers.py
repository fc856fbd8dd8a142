"""Functions of WGSL that translated kernels call.

WGSL leaves open what its own functions give beyond the common numbers: large angles, infinities,
numbers too small to be normal, NaNs. These give what C's do.
"""

from __future__ import annotations

import re

FUNCTIONS = """
fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }

fn is_infinite(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }

fn is_finite(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) < 0x7f800000u; }

fn infinity() -> f32 { return bitcast<f32>(infinite_bits); }

fn no_number() -> f32 { return bitcast<f32>(infinite_bits | 0x400000u); }

fn copy_sign(x: f32, y: f32) -> f32 {
  return bitcast<f32>((bitcast<u32>(x) & 0x7fffffffu) | (bitcast<u32>(y) & 0x80000000u));
}

fn least(a: f32, b: f32) -> f32 {
  if (is_nan(a)) { return b; }
  if (is_nan(b)) { return a; }
  return select(a, b, b < a);
}

fn largest(a: f32, b: f32) -> f32 {
  if (is_nan(a)) { return b; }
  if (is_nan(b)) { return a; }
  return select(a, b, b > a);
}

fn round_away(x: f32) -> f32 {
  let whole = trunc(x);
  return select(whole, whole + sign(x), abs(x - whole) >= 0.5);
}

fn times(a: u32, b: u32) -> vec2<u32> {
  let a0 = a & 0xffffu; let a1 = a >> 16u; let b0 = b & 0xffffu; let b1 = b >> 16u;
  let middle = a1 * b0 + ((a0 * b0) >> 16u);
  let other = a0 * b1 + (middle & 0xffffu);
  return vec2<u32>(a * b, a1 * b1 + (middle >> 16u) + (other >> 16u));
}

fn of_two_over_pi(i: u32) -> u32 {
  switch (i) {
    case 1u: { return 0xa2f9836eu; }
    case 2u: { return 0x4e441529u; }
    case 3u: { return 0xfc2757d1u; }
    case 4u: { return 0xf534ddc0u; }
    case 5u: { return 0xdb629599u; }
    case 6u: { return 0x3c439041u; }
    default: { return 0u; }
  }
}

struct Angle { quadrant: u32, rest: f32 }

fn reduced(x: f32) -> Angle {
  let a = abs(x);
  if (a < 8192.0) {
    let k = round(a * 0.63661977);
    let r = ((a - k * 1.5703125) - k * 4.837512969970703e-4) - k * 7.549789954891882e-8;
    return Angle(u32(k), r);
  }
  let bits = bitcast<u32>(a);
  let shift = (bits >> 23u) - 128u;
  let word = shift / 32u; let left = shift % 32u;
  var part: array<u32, 3>;
  for (var i = 0u; i < 3u; i++) {
    let high = of_two_over_pi(word + i); let low = of_two_over_pi(word + i + 1u);
    part[i] = select((high << left) | (low >> (32u - left)), high, left == 0u);
  }
  let mantissa = ((bits & 0x7fffffu) | 0x800000u) << 8u;
  let p1 = times(mantissa, part[1]); let p2 = times(mantissa, part[2]);
  let low = p1.x + p2.y;
  let high = mantissa * part[0] + p1.y + select(0u, 1u, low < p1.x);
  let quarter = (high + 0x20000000u) >> 30u;
  let signed_high = bitcast<i32>(high - (quarter << 30u));
  let rest = (f32(signed_high) + f32(low) * 2.3283064365e-10) * 1.4629180792671596e-9;
  return Angle(quarter, rest);
}

fn sine_of(angle: Angle) -> f32 {
  let z = angle.rest * angle.rest;
  let s = ((-1.9515295891e-4 * z + 8.3321608736e-3) * z - 1.6666654611e-1) * z * angle.rest
    + angle.rest;
  let c = ((2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2) * z * z
    - 0.5 * z + 1.0;
  let value = select(s, c, (angle.quadrant & 1u) == 1u);
  return select(value, -value, (angle.quadrant & 2u) == 2u);
}

fn sine(x: f32) -> f32 {
  if (!is_finite(x)) { return no_number(); }
  return copy_sign(1.0, x) * sine_of(reduced(x));
}

fn cosine(x: f32) -> f32 {
  if (!is_finite(x)) { return no_number(); }
  let angle = reduced(x);
  return sine_of(Angle(angle.quadrant + 1u, angle.rest));
}

fn tangent(x: f32) -> f32 { return sine(x) / cosine(x); }

fn arc_tangent(x: f32) -> f32 {
  var a = abs(x); var y = 0.0;
  if (is_nan(x)) { return x; }
  if (a > 2.414213562373095) { y = 1.5707963267948966; a = -1.0 / a; }
  else if (a > 0.4142135623730950) { y = 0.7853981633974483; a = (a - 1.0) / (a + 1.0); }
  let z = a * a;
  y += (((8.05374449538e-2 * z - 1.38776856032e-1) * z + 1.99777106478e-1) * z
    - 3.33329491539e-1) * z * a + a;
  return copy_sign(y, x);
}

fn arc_tangent_of(y: f32, x: f32) -> f32 {
  if (is_nan(x) || is_nan(y)) { return no_number(); }
  let negative = (bitcast<u32>(x) & 0x80000000u) != 0u;
  var a = abs(x); var b = abs(y);
  if (is_infinite(a) && is_infinite(b)) { a = 1.0; b = 1.0; }
  var angle = 0.0;
  if (b > a) { angle = 1.5707963267948966 - arc_tangent(a / b); }
  else if (b > 0.0) { angle = arc_tangent(b / a); }
  return copy_sign(select(angle, 3.141592653589793 - angle, negative), y);
}

fn arc_sine(x: f32) -> f32 {
  if (abs(x) > 1.0) { return no_number(); }
  return arc_tangent_of(x, sqrt((1.0 - x) * (1.0 + x)));
}

fn arc_cosine(x: f32) -> f32 {
  if (abs(x) > 1.0) { return no_number(); }
  return arc_tangent_of(sqrt((1.0 - x) * (1.0 + x)), x);
}

fn logarithm_2(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  if (is_nan(x)) { return x; }
  if ((bits & 0x7fffffffu) == 0u) { return -infinity(); }
  if (bits > 0x80000000u) { return no_number(); }
  if (bits == 0x7f800000u) { return x; }
  if (bits < 0x800000u) { return log2(f32(bits)) - 149.0; }
  return log2(x);
}

fn logarithm(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  if (bits > 0x800000u && bits < 0x7f800000u) { return log(x); }
  return logarithm_2(x) * 0.6931471805599453;
}

fn logarithm_10(x: f32) -> f32 { return logarithm_2(x) * 0.30102999566398120; }

fn logarithm_of_more(x: f32) -> f32 {
  let u = 1.0 + x;
  if (u == 1.0) { return x; }
  if (!(u > 0.0) || is_infinite(u)) { return logarithm(u); }
  return log(u) * (x / (u - 1.0));
}

fn exponential(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (x > 88.8) { return infinity(); }
  if (x < -104.0) { return 0.0; }
  return exp(x);
}

fn exponential_less_one(x: f32) -> f32 {
  if (abs(x) < 0.25) {
    return x * (1.0 + x * (0.5 + x * (0.16666667 + x * (0.041666668
      + x * (0.008333334 + x * (0.0013888889 + x * 0.00019841270))))));
  }
  return exponential(x) - 1.0;
}

fn hyperbolic_sine(x: f32) -> f32 {
  let a = abs(x);
  if (a > 80.0) { let e = exponential(0.5 * a); return copy_sign(0.5 * e * e, x); }
  let t = exponential_less_one(a);
  return copy_sign(0.5 * (t + t / (t + 1.0)), x);
}

fn hyperbolic_cosine(x: f32) -> f32 {
  let a = abs(x);
  if (a > 80.0) { let e = exponential(0.5 * a); return 0.5 * e * e; }
  let e = exponential(a);
  return 0.5 * (e + 1.0 / e);
}

fn hyperbolic_tangent(x: f32) -> f32 {
  if (is_nan(x)) { return x; }
  let a = abs(x);
  if (a > 10.0) { return copy_sign(1.0, x); }
  let t = exponential_less_one(2.0 * a);
  return copy_sign(t / (t + 2.0), x);
}

fn area_sine(x: f32) -> f32 {
  let a = abs(x);
  if (!(a < 1.0e9)) { return copy_sign(logarithm(a) + 0.6931471805599453, x); }
  return copy_sign(logarithm_of_more(a + a * a / (1.0 + sqrt(a * a + 1.0))), x);
}

fn area_cosine(x: f32) -> f32 {
  if (!(x >= 1.0)) { return no_number(); }
  if (x > 1.0e9) { return logarithm(x) + 0.6931471805599453; }
  let t = x - 1.0;
  return logarithm_of_more(t + sqrt(2.0 * t + t * t));
}

fn area_tangent(x: f32) -> f32 {
  let a = abs(x);
  if (a > 1.0 || is_nan(x)) { return no_number(); }
  if (a == 1.0) { return copy_sign(infinity(), x); }
  return copy_sign(0.5 * logarithm_of_more(2.0 * a / (1.0 - a)), x);
}

fn power(x: f32, y: f32) -> f32 {
  if (y == 0.0 || x == 1.0) { return 1.0; }
  if (is_nan(x) || is_nan(y)) { return no_number(); }
  let a = abs(x);
  let whole = trunc(y) == y;
  let odd = whole && abs(y) < 16777216.0 && fract(abs(y) * 0.5) != 0.0;
  let negative = (bitcast<u32>(x) & 0x80000000u) != 0u;
  var r: f32;
  if (is_infinite(y)) {
    if (a == 1.0) { return 1.0; }
    r = select(0.0, infinity(), (a > 1.0) == (y > 0.0));
    return r;
  }
  if (a == 0.0 || is_infinite(a)) {
    r = select(0.0, infinity(), (a == 0.0) != (y > 0.0));
  } else {
    if (negative && !whole) { return no_number(); }
    let e = y * logarithm_2(a);
    if (e > 128.0) { r = infinity(); } else if (e < -150.0) { r = 0.0; } else { r = exp2(e); }
  }
  return select(r, -r, negative && odd);
}

fn error_function_complement(x: f32) -> f32 {
  let a = abs(x);
  let t = 1.0 / (1.0 + 0.5 * a);
  let y = t * exponential(-a * a - 1.26551223 + t * (1.00002368 + t * (0.37409196
    + t * (0.09678418 + t * (-0.18628806 + t * (0.27886807 + t * (-1.13520398
    + t * (1.48851587 + t * (-0.82215223 + t * 0.17087277)))))))));
  return select(y, 2.0 - y, x < 0.0);
}

fn error_function(x: f32) -> f32 {
  if (abs(x) < 0.5) {
    let z = x * x;
    return x * (1.1283791671 + z * (-0.37612638904 + z * (0.11283791671
      + z * (-0.026866170645 + z * (0.0052239776254 - z * 0.00085483270))))) ;
  }
  return copy_sign(1.0 - error_function_complement(abs(x)), x);
}

fn bytes_of(w: u32) -> vec4<u32> {
  return (vec4<u32>(w) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u);
}

fn chars_of(w: u32) -> vec4<i32> {
  return bitcast<vec4<i32>>(vec4<u32>(w) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u);
}

fn word_of(x: vec4<u32>) -> u32 {
  let y = (x & vec4<u32>(255u)) << vec4<u32>(0u, 8u, 16u, 24u);
  return y.x | y.y | y.z | y.w;
}

fn narrowed(low: u32, high: u32) -> i32 {
  let x = bitcast<i32>(low);
  if (bitcast<i32>(high) == (x >> 31u)) { return x; }
  return select(2147483647i, -2147483647i - 1i, (high & 0x80000000u) != 0u);
}
"""

HELPERS: dict[str, str] = {
    m[1]: m[0].strip()
    for m in re.finditer(r"^(?:fn|struct) (\w+).*?(?=^fn |^struct |\Z)", FUNCTIONS, re.M | re.S)
}
"""The functions and structs of `FUNCTIONS` by name."""

C_NAMES = {
    "acos": "arc_cosine", "acosh": "area_cosine", "asin": "arc_sine", "asinh": "area_sine",
    "atan": "arc_tangent", "atan2": "arc_tangent_of", "atanh": "area_tangent", "cos": "cosine",
    "copysign": "copy_sign", "cosh": "hyperbolic_cosine", "erf": "error_function",
    "erfc": "error_function_complement", "exp": "exponential", "expm1": "exponential_less_one",
    "fmax": "largest", "fmin": "least", "isfinite": "is_finite", "isinf": "is_infinite",
    "isnan": "is_nan", "log": "logarithm", "log10": "logarithm_10", "log1p": "logarithm_of_more",
    "log2": "logarithm_2", "pow": "power", "round": "round_away", "sin": "sine",
    "sinh": "hyperbolic_sine", "tan": "tangent", "tanh": "hyperbolic_tangent",
    "__infinity": "infinity", "__nan": "no_number",
}  # fmt: skip
"""Functions of OpenCL on numbers, and the functions of `FUNCTIONS` that compute the same."""
SAME_NAMES = {"ceil": "ceil", "exp2": "exp2", "fabs": "abs", "floor": "floor", "rint": "round",
              "rsqrt": "inverseSqrt", "sign": "sign", "sqrt": "sqrt", "trunc": "trunc"}  # fmt: skip
"""Functions of OpenCL on numbers, and the functions of WGSL that compute the same."""
