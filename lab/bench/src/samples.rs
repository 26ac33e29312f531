//! Collects samples and reduces them to one figure: a quantile or the maximum.

use std::time::Duration;

/// Figures of one kind; their collector chooses the unit.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn add(&mut self, sample: f64) {
        self.0.push(sample);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the smallest sample that is not exceeded by this share (from 0 to 1) of all; not a number without
    /// samples.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let at = (share * sorted.len() as f64).ceil() as usize;
        let at = at.saturating_sub(1);
        sorted.get(at).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn p50(&self) -> f64 {
        self.quantile(0.5)
    }

    pub(crate) fn p99(&self) -> f64 {
        self.quantile(0.99)
    }

    pub(crate) fn max(&self) -> f64 {
        self.quantile(1.0)
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<T: IntoIterator<Item = f64>>(samples: T) -> Self {
        Self(samples.into_iter().collect())
    }
}

/// Returns nanoseconds, as answers carry them.
pub(crate) fn nanos(duration: Duration) -> f64 {
    duration.as_nanos() as f64
}

#[cfg(test)]
mod tests {
    use super::Samples;

    #[test]
    fn quantiles_are_samples() {
        let samples: Samples = (1..=200).rev().map(f64::from).collect();
        assert_eq!(samples.p50().to_bits(), 100_f64.to_bits());
        assert_eq!(samples.p99().to_bits(), 198_f64.to_bits());
        assert_eq!(samples.max().to_bits(), 200_f64.to_bits());
        assert!(Samples::default().p50().is_nan());
    }
}
