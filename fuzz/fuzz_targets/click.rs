//! Click configurations: any text is parsed, expanded and resolved or refused, and what is printed of an expanded
//! configuration is read as the same one. A text that is a script waits or ends, whatever handlers say.
#![no_main]

use std::sync::Arc;

use click::args::Args;
use click::classifier::Classifier;
use click::ip::IpClassifier;
use click::kinds;
use click::names::Names;
use click::script::{Machine, Need, Script, compute};
use libfuzzer_sys::fuzz_target;

/// Most that a script may need before it waits: a need for each piece of its work, and turns for others.
const NEEDS: usize = 2 * 10_001;

/// Runs a script, twice, until it waits or ends.
fn run(script: Script) {
    let mut machine = Machine::new(Arc::new(script));
    for round in ["", "1 2 $x"] {
        machine.run(round);
        machine.step(1);
        for need in 0..=NEEDS {
            assert!(need < NEEDS, "a script that does not wait");
            match machine.next_need() {
                Need::Read(call) => {
                    let value = compute(&call.handler, &call.argument);
                    machine.answer(value.and_then(Result::ok).unwrap_or(call.argument));
                }
                Need::Write(call) => machine.written(call.argument.is_empty()),
                Need::Print { .. } | Need::Complain(_) | Need::Yield => {}
                Need::Wait(_) | Need::Pause | Need::Done(_) => break,
            }
        }
    }
}

fuzz_target!(|text: &str| {
    if let Ok(script) = Script::parse("Script", text) {
        run(script);
    }
    let patterns = click::text::split_arguments(text);
    if let Ok(classifier) = Classifier::parse(&patterns) {
        classifier.output(text.as_bytes());
    }
    let Ok(flat) = click::parse("fuzz", text).and_then(|ast| click::flatten(&ast, &[])) else {
        return;
    };
    let _ = click::resolve(&flat);
    let printed = flat.to_string();
    // An element of one scope may have the name of a class of another.
    let ambiguous = flat.elements.iter().any(|element| flat.find(&element.class).is_some());
    if printed.len() <= click::LONGEST && !ambiguous {
        let again = click::parse("fuzz", &printed).and_then(|ast| click::flatten(&ast, &[]));
        assert_eq!(again.expect("a printed configuration").to_string(), printed);
    }
    let Ok(names) = Names::of(&flat) else { return };
    for element in &flat.elements {
        let scope = names.scope(element);
        for filter in [IpClassifier::filter, IpClassifier::classifier] {
            if let Ok(filter) = filter(&element.arguments, &scope) {
                filter.output(text.as_bytes());
            }
        }
        let mut args = Args::new(&names, element);
        let _ = args.optional("A", kinds::prefix4_or_address);
        let _ = args.keyword("RATE", kinds::bandwidth);
        let _ = args.keyword("TIME", kinds::duration);
        let _ = args.keyword("N", kinds::integer(0..=u32::MAX));
        let _ = args.finish();
    }
});
