//! Parses numbers from texts that others wrote.

use std::fmt::Display;
use std::str::FromStr;

/// Parses a whole number in the only spelling in which this crate writes it: `7`, but neither `007` nor `+7`. A text in another
/// spelling is no copy of what was shown, so it names no term, partition or process.
pub fn number<T: FromStr + Display>(text: &str) -> Option<T> {
    let number: T = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_read_only_as_it_is_written() {
        assert_eq!(number("0"), Some(0_u32));
        assert_eq!(number("4711"), Some(4711_i64));
        assert_eq!(number("-7"), Some(-7_i64));
        for wrong in [
            "", "+7", "007", "-0", "00", " 7", "7 ", "7.0", "x", "\u{0667}",
        ] {
            assert_eq!(number::<i64>(wrong), None, "{wrong:?}");
        }
        assert_eq!(number::<u8>("256"), None);
    }
}
