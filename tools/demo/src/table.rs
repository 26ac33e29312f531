//! Formats the summary as a table.

/// The outcome of one step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) step: String,
    pub(crate) expected: String,
    /// The measured result, or the reason why it failed.
    pub(crate) outcome: Result<String, String>,
}

/// Returns the summary, with a heading.
pub(crate) fn summary(rows: &[Row]) -> String {
    let mut cells = vec![["step", "expected", "measured", "ok"].map(str::to_owned)];
    cells.extend(rows.iter().map(|row| {
        let (measured, ok) = match &row.outcome {
            Ok(measured) => (measured.as_str(), "yes"),
            // The reason may be long, so it has a line of its own.
            Err(_) => ("failed", "NO"),
        };
        [&row.step, &row.expected, measured, ok].map(str::to_owned)
    }));
    let width = |column: usize| {
        let widths = cells.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or_default()
    };
    let widths = [width(0), width(1), width(2), width(3)];
    let rule = widths.map(|width| "-".repeat(width));
    cells.insert(1, rule);
    let line = |row: &[String; 4]| {
        let padded = row.iter().zip(widths);
        let padded: Vec<String> = padded.map(|(cell, w)| format!("{cell:w$}")).collect();
        format!(" {}\n", padded.join("  ").trim_end())
    };
    cells.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(step: &str, outcome: Result<&str, &str>) -> Row {
        Row {
            step: step.into(),
            expected: "soon".into(),
            outcome: outcome.map(str::to_owned).map_err(str::to_owned),
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let text = summary(&[
            row("1 join", Ok("after 1 µs")),
            row("2", Err("not within 3 s")),
        ]);
        let wanted = concat!(
            " step    expected  measured    ok\n",
            " ------  --------  ----------  ---\n",
            " 1 join  soon      after 1 µs  yes\n",
            " 2       soon      failed      NO\n",
        );
        assert_eq!(text, wanted);
    }
}
