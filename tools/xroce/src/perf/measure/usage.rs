//! What messages cost the processor: CPU time of a thread, and what its event counters say where
//! the machine has them.
//!
//! Work that the kernel does in other contexts (interrupts, `ksoftirqd`) is not in it.

use nix::sys::resource::{UsageWho, getrusage};
use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use serde::{Deserialize, Serialize};

/// What a thread used, over the measured parts of a step.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Usage {
    /// CPU time in user mode, in ns.
    pub user_ns: u64,
    /// CPU time in the kernel, in ns.
    pub system_ns: u64,
    /// Events, if they can be counted.
    pub events: Option<Events>,
    /// Why they cannot, if they cannot.
    pub refusal: Option<String>,
}

/// Events of a processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Events {
    /// Instructions retired.
    pub instructions: u64,
    /// Cycles.
    pub cycles: u64,
    /// Misses of the last level of cache.
    pub cache_misses: u64,
    /// Whether those in the kernel are counted too.
    pub with_kernel: bool,
}

impl Usage {
    /// CPU time in ns.
    pub(crate) fn cpu_ns(&self) -> u64 {
        self.user_ns.saturating_add(self.system_ns)
    }

    /// Adds what the thread of another port used.
    pub(crate) fn add(&mut self, other: &Self) {
        self.user_ns = self.user_ns.saturating_add(other.user_ns);
        self.system_ns = self.system_ns.saturating_add(other.system_ns);
        self.events = match (self.events, other.events) {
            (Some(a), Some(b)) => Some(Events {
                instructions: a.instructions.saturating_add(b.instructions),
                cycles: a.cycles.saturating_add(b.cycles),
                cache_misses: a.cache_misses.saturating_add(b.cache_misses),
                with_kernel: a.with_kernel && b.with_kernel,
            }),
            _ => None,
        };
        if self.refusal.is_none() {
            self.refusal.clone_from(&other.refusal);
        }
    }
}

/// Measures the thread that made it.
pub(crate) struct Gauge {
    counters: Result<Counters, String>,
    start: (u64, u64),
    sum: Usage,
}

struct Counters {
    instructions: Counter,
    cycles: Counter,
    cache_misses: Counter,
    with_kernel: bool,
}

impl Gauge {
    /// A gauge of the calling thread, at zero.
    pub(crate) fn new() -> Self {
        let counters = Counters::open().map_err(|e| refusal(&e));
        Self {
            counters,
            start: (0, 0),
            sum: Usage::default(),
        }
    }

    /// Back to zero.
    pub(crate) fn reset(&mut self) {
        self.sum = Usage::default();
        if let Ok(c) = &mut self.counters
            && let Err(e) = c.each(Counter::reset)
        {
            self.counters = Err(refusal(&e));
        }
    }

    /// From here on it counts.
    pub(crate) fn start(&mut self) {
        self.start = cpu_times();
        if let Ok(c) = &mut self.counters
            && let Err(e) = c.each(Counter::enable)
        {
            self.counters = Err(refusal(&e));
        }
    }

    /// No longer.
    pub(crate) fn stop(&mut self) {
        if let Ok(c) = &mut self.counters
            && let Err(e) = c.each(Counter::disable)
        {
            self.counters = Err(refusal(&e));
        }
        let now = cpu_times();
        self.sum.user_ns += now.0.saturating_sub(self.start.0);
        self.sum.system_ns += now.1.saturating_sub(self.start.1);
    }

    /// What was used between starts and stops.
    pub(crate) fn usage(&mut self) -> Usage {
        let events = match &mut self.counters {
            Ok(counters) => counters.read().map_err(|e| refusal(&e)),
            Err(why) => Err(why.clone()),
        };
        Usage {
            refusal: events.as_ref().err().cloned(),
            events: events.ok(),
            ..self.sum.clone()
        }
    }
}

impl Counters {
    /// With the kernel if that is allowed, else without: an AF_XDP port does part of its work in
    /// system calls.
    fn open() -> std::io::Result<Self> {
        match Self::of(true) {
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => Self::of(false),
            other => other,
        }
    }

    fn of(with_kernel: bool) -> std::io::Result<Self> {
        let counter = |event: Hardware| {
            let mut builder = Builder::new(event);
            builder.exclude_kernel(!with_kernel).exclude_hv(true);
            builder.observe_self().any_cpu().build()
        };
        Ok(Self {
            instructions: counter(Hardware::INSTRUCTIONS)?,
            cycles: counter(Hardware::CPU_CYCLES)?,
            cache_misses: counter(Hardware::CACHE_MISSES)?,
            with_kernel,
        })
    }

    fn each(&mut self, f: fn(&mut Counter) -> std::io::Result<()>) -> std::io::Result<()> {
        let all = [
            &mut self.instructions,
            &mut self.cycles,
            &mut self.cache_misses,
        ];
        all.into_iter().try_for_each(f)
    }

    fn read(&mut self) -> std::io::Result<Events> {
        Ok(Events {
            instructions: self.instructions.read()?,
            cycles: self.cycles.read()?,
            cache_misses: self.cache_misses.read()?,
            with_kernel: self.with_kernel,
        })
    }
}

/// Why there are no event counters, in words.
fn refusal(error: &std::io::Error) -> String {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::Unsupported => {
            "not offered: no PMU in this machine (a virtual one shows it only if its host lets it)"
                .to_owned()
        }
        ErrorKind::PermissionDenied => {
            "not allowed: needs CAP_PERFMON, or sysctl kernel.perf_event_paranoid=2 or less"
                .to_owned()
        }
        _ => format!("not offered: {error}"),
    }
}

/// CPU time of the calling thread in ns, in user mode and in the kernel.
fn cpu_times() -> (u64, u64) {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else {
        return (0, 0);
    };
    let ns = |t: nix::sys::time::TimeVal| {
        let micros = t.tv_sec().saturating_mul(1_000_000) + t.tv_usec();
        u64::try_from(micros).unwrap_or(0) * 1_000
    };
    (ns(usage.user_time()), ns(usage.system_time()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Until the thread has used so much CPU time.
    fn work(ns: u64) {
        let sum = |t: (u64, u64)| t.0 + t.1;
        let end = sum(cpu_times()) + ns;
        while sum(cpu_times()) < end {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn only_what_lies_between_start_and_stop_counts() {
        let mut gauge = Gauge::new();
        gauge.start();
        work(20_000_000);
        gauge.stop();
        work(200_000_000);
        let one = gauge.usage();
        assert!((20_000_000..150_000_000).contains(&one.cpu_ns()), "{one:?}");
        // Either there are events, or a reason.
        assert_ne!(one.events.is_some(), one.refusal.is_some(), "{one:?}");
        if let Some(events) = one.events {
            assert!(events.instructions > 1_000_000, "{one:?}");
        }
        gauge.start();
        work(20_000_000);
        gauge.stop();
        assert!(gauge.usage().cpu_ns() >= 2 * 20_000_000);
        gauge.reset();
        let zero = gauge.usage();
        assert_eq!((zero.cpu_ns(), zero.events.map_or(0, |e| e.cycles)), (0, 0));
    }

    #[test]
    fn a_sum_has_events_only_if_all_have() {
        let with = Usage {
            user_ns: 1,
            system_ns: 2,
            events: Some(Events {
                instructions: 5,
                ..Events::default()
            }),
            refusal: None,
        };
        let mut sum = with.clone();
        sum.add(&with);
        assert_eq!((sum.cpu_ns(), sum.events.unwrap().instructions), (6, 10));
        sum.add(&Usage {
            refusal: Some("no PMU".to_owned()),
            ..Usage::default()
        });
        assert_eq!((sum.events, sum.refusal.as_deref()), (None, Some("no PMU")));
    }

    #[test]
    fn refusals_say_why() {
        for (errno, words) in [
            (2, "no PMU"),
            (95, "no PMU"),
            (13, "CAP_PERFMON"),
            (1, "CAP_PERFMON"),
        ] {
            let why = refusal(&std::io::Error::from_raw_os_error(errno));
            assert!(why.contains(words), "{errno}: {why}");
        }
    }
}
