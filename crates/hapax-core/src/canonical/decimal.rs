//! Numbers of JSON by their decimal value, with as many digits as they have.

/// Whether two numbers of JSON's grammar have the same value, exactly.
pub(super) fn same_value(left: &str, right: &str) -> bool {
    let left = Decimal::of(left);
    left.is_some() && left == Decimal::of(right)
}

/// `digits` times ten to the power of `exponent`; the digits neither begin nor end with a zero, and zero has none.
#[derive(PartialEq, Default)]
struct Decimal {
    negative: bool,
    digits: String,
    exponent: i64,
}

impl Decimal {
    /// `None`: its exponent is beyond all measure.
    fn of(number: &str) -> Option<Self> {
        let (mantissa, power) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = [whole.trim_start_matches('-'), fraction].concat();
        let without_end = all.trim_end_matches('0');
        let digits = without_end.trim_start_matches('0');
        if digits.is_empty() {
            return Some(Self::default());
        }
        let moved =
            i64::try_from(all.len() - without_end.len()).ok()? - i64::try_from(fraction.len()).ok()?;
        let exponent = power.parse::<i64>().ok()?.checked_add(moved)?;
        Some(Self { negative: number.starts_with('-'), digits: digits.to_owned(), exponent })
    }
}

#[cfg(test)]
mod tests {
    use super::same_value;

    #[test]
    fn numbers_are_the_same_by_their_value_alone() {
        for (left, right) in [
            ("1.0", "1"),
            ("100", "1e2"),
            ("1E+2", "0.1e3"),
            ("-0.50", "-5e-1"),
            ("-0.0", "0"),
            ("0e-99999999999999999999", "0"),
            ("10.010", "1.001e0001"),
        ] {
            assert!(same_value(left, right), "{left} {right}");
        }
        for (left, right) in [
            ("90071992547409.93", "90071992547409.94"),
            ("1", "-1"),
            ("1", "10"),
            ("0.1", "0.01"),
            ("1e-400", "0"),
            ("1e-99999999999999999999", "1e-99999999999999999999"),
        ] {
            assert!(!same_value(left, right), "{left} {right}");
        }
    }
}
