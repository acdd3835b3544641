use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::testing::run;

fn parse(value: &Value) -> Result<Run, ReportError> {
    Run::parse(value.to_string().as_bytes(), Path::new("there.json"))
}

fn written() -> Value {
    serde_json::from_str(&run().to_json()).unwrap()
}

#[test]
fn a_run_survives_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.json");
    let run = run();
    run.write(&path).unwrap();
    assert_eq!(Run::read(&path).unwrap(), run);
    let value = written();
    assert_eq!(value["rows"][0]["summary"]["ratio"]["median"], json!(0.9));
    assert_eq!(value["rows"][0]["summary"]["met"], json!(true));
}

#[test]
fn what_is_not_a_run_is_named() {
    let missing = Run::read(Path::new("nowhere/run.json")).unwrap_err();
    assert!(missing.to_string().starts_with("nowhere/run.json: No such"));
    for (text, words) in [
        ("{", "there.json: not JSON: EOF"),
        ("\u{0}\u{1}", "not JSON"),
        ("[]", "no number \"schema\""),
        ("{\"schema\": \"two\"}", "no number \"schema\""),
        ("{\"schema\": -1}", "no number \"schema\""),
        (
            "{\"schema\": 1}",
            "schema 1, this xroce reads schema 2: run the benches again",
        ),
        (
            "{\"schema\": 9}",
            "schema 9, this xroce reads schema 2: use a newer",
        ),
        ("{\"schema\": 2}", "field .: missing field `started`"),
    ] {
        let e = Run::parse(text.as_bytes(), Path::new("there.json")).unwrap_err();
        assert!(e.to_string().contains(words), "{text}: {e}");
    }
    // The parser gives up before the stack does.
    let deep = "[".repeat(100_000);
    assert!(Run::parse(deep.as_bytes(), Path::new("deep")).is_err());
}

#[test]
fn a_wrong_field_is_named() {
    let long = "x".repeat(TEXT_MAX + 1);
    for (pointer, value, words) in [
        (
            "/rows/0/samples/1/ours",
            json!("fast"),
            "field rows[0].samples[1].ours: invalid type",
        ),
        (
            "/rows/0/samples/1/ours",
            json!(-1.0),
            "field rows[0].samples[1].ours: -1 is no figure",
        ),
        ("/rows/0/samples/1/peer", json!(1e300), "is no figure"),
        (
            "/rows/0/unit",
            json!("miles"),
            "field rows[0].unit: unknown variant `miles`",
        ),
        ("/rows/0/goal", json!({"ratio": 1}), "field rows[0].goal"),
        (
            "/rows/0/measure",
            json!("\u{1b}[2J"),
            "field rows[0].measure: it has a control",
        ),
        (
            "/rows/0/notes",
            json!([long]),
            "field rows[0].notes[0]: 4001 bytes, at most 4000",
        ),
        (
            "/rows/1/key",
            json!("D1"),
            "field rows[1].key: \"D1\" is there twice",
        ),
        (
            "/machine/others/0",
            json!(1.5),
            "field machine.others[0]: 1.5 is no share",
        ),
        (
            "/machine/cores",
            json!(-2),
            "field machine.cores: invalid value",
        ),
        (
            "/bars/0/parts/0/share",
            json!(-0.5),
            "field bars[0].parts[0].share",
        ),
        (
            "/plots/0/curves/0/points/0",
            json!([1.0]),
            "field plots[0].curves[0].points[0]",
        ),
        ("/plots/0/x/scale", json!("round"), "field plots[0].x.scale"),
        ("/rounds", Value::Null, "field rounds: invalid type: null"),
    ] {
        let mut run = written();
        *run.pointer_mut(pointer).unwrap() = value;
        let e = parse(&run).unwrap_err().to_string();
        assert!(
            e.starts_with("there.json: ") && e.contains(words),
            "{pointer}: {e}"
        );
    }
    let mut run = written();
    run["bars"] = Value::Array(vec![run["bars"][0].clone(); ITEMS_MAX + 1]);
    let e = parse(&run).unwrap_err().to_string();
    assert!(e.contains("field bars: 1001 of them"), "{e}");
}

/// Every value of a JSON document, as pointers.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    let mut each = |name: &str, value| {
        let at = format!("{at}/{name}");
        pointers(value, &at, found);
        found.push(at);
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(k, v)| each(k, v)),
        Value::Array(all) => all
            .iter()
            .enumerate()
            .for_each(|(i, v)| each(&i.to_string(), v)),
        _ => {}
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!([])),
        Just(json!({})),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        Just(json!(0)),
        Just(json!(1e-18)),
        Just(json!(1e18)),
        "\\PC{0,12}".prop_map(Value::from),
    ]
}

proptest! {
    /// Whatever stands in a file, it is refused or it can be shown and compared.
    #[test]
    fn nothing_in_a_file_makes_it_panic(
        at in any::<prop::sample::Index>(),
        value in any_value(),
        bytes in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let _ = Run::parse(&bytes, Path::new("noise"));
        let mut changed = written();
        let mut all = Vec::new();
        pointers(&changed, "", &mut all);
        *changed.pointer_mut(at.get::<String>(&all)).unwrap() = value;
        if let Ok(read) = parse(&changed) {
            let _ = (read.markdown(), read.html(), read.to_json());
            let _ = crate::compare(&run(), &read).markdown();
        }
    }
}
