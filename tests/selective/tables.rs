//! What retransmission costs, as tables in virtual time: 100 Gb/s, 10 µs there and back, packets of
//! 4 KB in messages of 64 KB, one direction.

use std::fmt::Write;

use xroce_net::sim::Impairment;
use xroce_proto::recovery::{AdaptiveParams, Reliability};
use xroce_proto::time::Duration;

use crate::stream::{Kind, Outcome, Stream, selective, stream, wire};

/// Parts per million lost, each way.
const LOSSES: [u32; 4] = [0, 1_000, 10_000, 50_000];

/// Packets that go-back-N has in flight, and so sends again for each loss.
const WINDOW: u32 = 64;

fn lossy(kind: Kind, reliability: Reliability, loss_ppm: u32) -> Stream {
    Stream {
        messages: 800,
        // What comes back is small and coalesced: what it loses is seen in other tests.
        there: wire(loss_ppm),
        back: wire(if kind == Kind::Read { loss_ppm } else { 0 }),
        window: WINDOW,
        ..stream(kind, reliability)
    }
}

/// Part of the lossless goodput.
fn part(stream: &Stream) -> (f64, Outcome) {
    let out = stream.run();
    let lossless = Stream {
        there: wire(0),
        back: wire(0),
        ..*stream
    };
    (out.goodput(stream) / lossless.run().goodput(&lossless), out)
}

/// (1 - p) / (1 - p + p W): every loss costs the window once more.
fn theory(loss_ppm: u32) -> f64 {
    let p = f64::from(loss_ppm) / 1e6;
    (1.0 - p) / (1.0 - p + p * f64::from(WINDOW))
}

#[test]
fn l1_and_l2_goodput_under_loss() {
    let mut table = String::from("loss     go-back-N  theory  SEND   WRITE  READ\n");
    for loss in LOSSES {
        let plain = Stream {
            // 131 µs: a packet lost twice waits for it.
            timeout: 5,
            ..lossy(Kind::Write, Reliability::GoBackN, loss)
        };
        let (went_back, _) = part(&plain);
        let [send, write, read] = [Kind::Send, Kind::Write, Kind::Read].map(|kind| {
            let (part, out) = part(&lossy(kind, selective(), loss));
            assert!(
                loss > 10_000 || out.requester.timeouts == 0,
                "{kind:?} {loss}: {out:?}"
            );
            part
        });
        let p = f64::from(loss) / 1e4;
        let theory = theory(loss);
        writeln!(
            table,
            "{p:>4.1} %   {went_back:>9.2}  {theory:>6.2}  {send:>5.2}  {write:>5.2}  {read:>5.2}"
        )
        .unwrap();
        if loss <= 10_000 {
            assert!(
                (went_back / theory - 1.0).abs() < 0.1,
                "L2 at {loss}: {went_back}"
            );
            assert!(send >= 0.9 && write >= 0.9, "L1 at {loss}: {send}, {write}");
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn l3_reordering_alone_makes_nothing_be_sent_again() {
    let mut table = String::from("positions  held   kind   goodput  out of order  sent again\n");
    // Those that are held pass each other as well: with many of them the positions add up.
    for (positions, reorder_ppm) in [(1, 200_000), (8, 50_000), (48, 50_000), (64, 2_000)] {
        for kind in [Kind::Send, Kind::Write, Kind::Read] {
            let wire = Impairment {
                reorder_ppm,
                reorder_positions: positions,
                // What 64 packets take: at the end of the stream nobody passes.
                reorder_delay_ns: 22_000,
                ..wire(0)
            };
            let s = Stream {
                there: wire,
                back: wire,
                ..lossy(kind, selective(), 0)
            };
            let (part, out) = part(&s);
            let late = match kind {
                Kind::Read => "-".into(),
                _ => out.responder.out_of_sequence.to_string(),
            };
            let again = out.requester.retransmits;
            let copies = out.responder.duplicates;
            assert_eq!((again, copies), (0, 0), "{kind:?} {positions}: {out:#?}");
            let held = f64::from(reorder_ppm) / 1e4;
            writeln!(
                table,
                "{positions:>9}  {held:>4.1}%  {kind:<5}  {part:>7.2}  {late:>12}  {again:>10}"
            )
            .unwrap();
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn the_timeout_that_follows_the_round_trip_helps_with_any_peer() {
    let mut table = String::from("loss     kind   timeout 67 ms  adaptive\n");
    let floor = Duration::from_micros(100);
    for kind in [Kind::Send, Kind::Write, Kind::Read] {
        for loss in [1_000, 10_000, 50_000] {
            let with = |reliability| {
                let stream = Stream {
                    messages: 300,
                    ..lossy(kind, reliability, loss)
                };
                part(&stream).0
            };
            let plain = with(Reliability::GoBackN);
            let adaptive = with(Reliability::Adaptive(AdaptiveParams { floor }));
            let p = f64::from(loss) / 1e4;
            writeln!(
                table,
                "{p:>4.1} %   {kind:<5}  {plain:>13.4}  {adaptive:>8.4}"
            )
            .unwrap();
            assert!(adaptive >= plain, "{kind:?} {loss}: {adaptive} < {plain}");
        }
    }
    insta::assert_snapshot!(table);
}
