//! Parses whole numbers.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use eldest::internal;

/// Returns a parser of whole numbers within a range.
pub(crate) fn within<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + Display + PartialOrd + Clone + Send + Sync + 'static,
{
    move |text| {
        let number = internal::number(text).filter(|number| range.contains(number));
        number.ok_or_else(|| {
            let (from, to) = (range.start(), range.end());
            format!("it must be a whole number from {from} to {to}, written as 7, not as 07 or +7")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_read_within_its_range_and_as_it_is_shown() {
        let parse = within(1..=1024);
        assert_eq!(parse("1"), Ok(1));
        assert_eq!(parse("1024"), Ok(1024));
        for wrong in ["0", "1025", "-1", "+7", "07", "7.0", "", "x"] {
            let error = parse(wrong).unwrap_err();
            assert!(error.contains("from 1 to 1024"), "{wrong}: {error}");
        }
    }
}
