//! Click configurations: any text is parsed, expanded and resolved or refused, and what is printed of an expanded
//! configuration is read as the same one.
#![no_main]

use click::args::Args;
use click::classifier::Classifier;
use click::ip::IpClassifier;
use click::kinds;
use click::names::Names;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
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
