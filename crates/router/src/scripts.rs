//! Scripts of the configuration (`Script`, `DriverManager`): a task each, in the API's thread.
//!
//! ```text
//!   element with a script --> task: click::script::Machine -- HandlerCall --> API's channel --> owner
//!   owner: handlers run, step, goto -- Order --> task             <------- answer, one at a time --+
//! ```
//!
//! A script reads and writes handlers like a client of a control socket. It has one call to the owner under way, pauses
//! after each [`CALLS`] of them, leaves others their turn, and is stopped if it does too much without waiting: so none
//! delays the router. The owner never waits for a script. An order to one that is being executed is refused, except
//! steps, which it takes when it next waits; so scripts that run each other do not wait for each other.

use std::fs::OpenOptions;
use std::future::pending;
use std::io::Write;
use std::mem::take;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api::report::HandlerAnswer;
use api::{Answer, HandlerCall, Request};
use click::script::{CLASSES, Call, End, Kind, Machine, Need, Script, compute};
use control::config::Element;
use dataplane::lock::lock;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, yield_now};
use tokio::time::sleep;

use super::handlers::{said, status};
use super::server::{Question, audit};

/// Calls to the owner after which a script pauses, and for how long.
const CALLS: u32 = 32;
const PAUSE: Duration = Duration::from_millis(4);

/// Longest text in the log, in bytes.
const LOGGED_MOST: usize = 4096;

/// Most lines of a script in the log in a second.
const LINES_MOST: usize = 100;

/// The value of a script's `run`, or the reason why there is none.
type Value = Result<String, String>;

/// An order to a script.
enum Order {
    /// Goes behind so many blocking instructions.
    Step(u32),
    /// Goes on at a label.
    GoTo(String),
    /// Begins, with arguments.
    Run(String),
}

/// The scripts that run.
#[derive(Default)]
pub struct Scripts(Vec<Running>);

struct Running {
    element: Element,
    kind: Kind,
    orders: mpsc::Sender<(Order, oneshot::Sender<Value>)>,
    shared: Arc<Shared>,
    task: AbortHandle,
}

/// State that a script's task shares with the owner.
#[derive(Default)]
struct Shared {
    load: Mutex<Load>,
    /// It has ended and ends the router.
    is_over: AtomicBool,
    /// The variables that handlers have.
    exported: Mutex<Vec<(String, String)>>,
}

/// The progress of a script.
#[derive(Default)]
struct Load {
    /// It is being executed, or has an order.
    is_busy: bool,
    /// Steps while it was busy.
    steps: u32,
}

impl Shared {
    /// Begins to be busy; returns false if it was busy already.
    fn begin(&self) -> bool {
        let mut load = lock(&self.load);
        !std::mem::replace(&mut load.is_busy, true)
    }

    /// Likewise for steps, which are kept for one that is busy.
    fn begin_or_keep(&self, steps: u32) -> bool {
        let mut load = lock(&self.load);
        if load.is_busy {
            load.steps = load.steps.saturating_add(steps);
            return false;
        }
        load.is_busy = true;
        true
    }

    /// Ends to be busy, unless there have been steps; returns their number.
    fn rest(&self) -> u32 {
        let mut load = lock(&self.load);
        load.is_busy = load.steps > 0;
        take(&mut load.steps)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Scripts {
    /// Runs the scripts of these elements from now on; one that stays as it is goes on.
    pub fn serve(
        &mut self,
        elements: &[Element],
        (runtime, questions): (&Handle, &mpsc::Sender<Question>),
    ) {
        let is_same = |one: &Element, other: &Element| {
            (&one.name, &one.class, &one.config) == (&other.name, &other.class, &other.config)
        };
        let scripts =
            || elements.iter().filter(|element| CLASSES.contains(&element.class.as_str()));
        self.0.retain(|running| scripts().any(|element| is_same(element, &running.element)));
        for element in scripts() {
            if self.0.iter().any(|running| is_same(element, &running.element)) {
                continue;
            }
            match Script::parse(&element.class, &element.config) {
                Ok(script) => self.0.push(begin(element, script, (runtime, questions))),
                // Checked with the configuration.
                Err(error) => tracing::error!("script \"{}\": {error}", element.name),
            }
        }
    }

    fn of(&self, element: &str) -> Option<&Running> {
        self.0.iter().find(|running| running.element.name == element)
    }

    /// The value of a variable that a script exports.
    pub fn exported(&self, element: &str, name: &str) -> Option<String> {
        let running = self.of(element)?;
        let exported = lock(&running.shared.exported);
        exported.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }

    /// Gives a handler of a script its value: its answer comes later.
    ///
    /// # Errors
    /// There is no such script or handler now.
    pub fn call(
        &self,
        element: &str,
        handler: &str,
        text: &str,
    ) -> Result<oneshot::Receiver<Value>, String> {
        let running = self.of(element);
        let running = running.ok_or_else(|| format!("script \"{element}\" does not run"))?;
        let text = text.trim();
        let order = match handler {
            "run" => Order::Run(text.to_owned()),
            "goto" => Order::GoTo(text.to_owned()),
            _ if text.is_empty() => Order::Step(1),
            _ => Order::Step(text.parse().map_err(|_| "syntax error: expected a number of steps")?),
        };
        running.order(order)
    }

    /// Asks a `DriverManager` in place of ending the router; returns false if there is none, or it has ended.
    pub fn intercepts_stop(&self) -> bool {
        let mut drivers = self.0.iter().filter(|running| running.kind == Kind::Driver);
        drivers.any(|driver| {
            !driver.shared.is_over.load(Ordering::Relaxed) && driver.order(Order::Step(1)).is_ok()
        })
    }
}

impl Running {
    fn order(&self, order: Order) -> Result<oneshot::Receiver<Value>, String> {
        let (to, answer) = oneshot::channel();
        let begins = match order {
            Order::Step(count) => self.shared.begin_or_keep(count),
            _ if self.shared.begin() => true,
            _ => return Err("the script is being executed; try again".to_owned()),
        };
        if !begins {
            let _ = to.send(Ok(String::new()));
            return Ok(answer);
        }
        let sent = self.orders.try_send((order, to));
        sent.map_err(|_| "the script has ended".to_owned()).map(|()| answer)
    }
}

fn begin(
    element: &Element,
    script: Script,
    (runtime, questions): (&Handle, &mpsc::Sender<Question>),
) -> Running {
    let (orders, taken) = mpsc::channel(1);
    let (kind, shared) = (script.kind(), Arc::new(Shared::default()));
    shared.begin();
    let task = Task {
        name: element.name.clone(),
        kind,
        machine: Machine::new(Arc::new(script)),
        orders: taken,
        questions: questions.clone(),
        shared: shared.clone(),
        asker: None,
        calls: 0,
        lines: Lines::default(),
    };
    let task = runtime.spawn(task.run()).abort_handle();
    Running { element: element.clone(), kind, orders, shared, task }
}

/// A script in execution.
struct Task {
    name: String,
    kind: Kind,
    machine: Machine,
    orders: mpsc::Receiver<(Order, oneshot::Sender<Value>)>,
    questions: mpsc::Sender<Question>,
    shared: Arc<Shared>,
    /// The one that waits until it blocks or ends.
    asker: Option<oneshot::Sender<Value>>,
    calls: u32,
    lines: Lines,
}

/// The lines that a script has printed in the present second.
#[derive(Default)]
struct Lines {
    since: Option<Instant>,
    count: usize,
    left_out: usize,
}

impl Lines {
    /// Returns true if one more may be logged now; a new second also returns the number of those that were left out.
    fn one_more(&mut self, now: Instant) -> (bool, usize) {
        let is_new = |since: Instant| now.duration_since(since) >= Duration::from_secs(1);
        let mut left_out = 0;
        if self.since.is_none_or(is_new) {
            left_out = take(&mut self.left_out);
            (self.since, self.count) = (Some(now), 0);
        }
        self.count += 1;
        self.left_out += usize::from(self.count > LINES_MOST);
        (self.count <= LINES_MOST, left_out)
    }
}

impl Task {
    async fn run(mut self) {
        loop {
            let goes_on = match self.machine.next_need() {
                Need::Read(call) => {
                    let value = self.read(call).await;
                    self.machine.answer(value);
                    true
                }
                Need::Write(call) => {
                    let is_done = self.write(call).await;
                    self.machine.written(is_done);
                    true
                }
                Need::Print { text, file } => {
                    self.print(text, file).await;
                    true
                }
                Need::Complain(text) => {
                    tracing::warn!("script \"{}\": {text}", self.name);
                    true
                }
                Need::Yield => {
                    yield_now().await;
                    true
                }
                Need::Wait(time) => self.wait(Some(time)).await,
                Need::Pause => self.wait(None).await,
                Need::Done(end) => self.end(end).await,
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Waits for an order, or for a time. Returns false if no order can come any more.
    async fn wait(&mut self, time: Option<Duration>) -> bool {
        let late = async {
            match time {
                Some(time) => sleep(time).await,
                None => pending().await,
            }
        };
        tokio::pin!(late);
        if self.rests_not() {
            return true;
        }
        self.reply(Ok(String::new()));
        loop {
            let (order, is_late) = tokio::select! {
                order = self.orders.recv() => (order, false),
                () = &mut late => {
                    if self.shared.begin() {
                        self.machine.time_is_over();
                        return true;
                    }
                    // An order came at the same time.
                    (self.orders.recv().await, true)
                }
            };
            let Some(order) = order else { return false };
            if self.takes(order) {
                return true;
            }
            if is_late {
                self.machine.time_is_over();
                return true;
            }
            if self.rests_not() {
                return true;
            }
        }
    }

    /// Lets others give orders, and see the variables, from now on; returns true if there have been steps meanwhile.
    fn rests_not(&mut self) -> bool {
        self.publish();
        let steps = self.shared.rest();
        self.machine.step(steps);
        steps > 0
    }

    fn publish(&self) {
        let exported = self.machine.exported();
        let exported = exported.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        *lock(&self.shared.exported) = exported;
    }

    fn reply(&mut self, value: Value) {
        if let Some(asker) = self.asker.take() {
            // The client may have disconnected.
            let _ = asker.send(value);
        }
    }

    /// Takes an order; returns false if it is refused, so that the script goes on waiting.
    fn takes(&mut self, (order, asker): (Order, oneshot::Sender<Value>)) -> bool {
        self.asker = Some(asker);
        match order {
            Order::Step(count) => self.machine.step(count),
            Order::Run(arguments) => self.machine.run(&arguments),
            Order::GoTo(label) => {
                if let Err(why) = self.machine.go_to(&label) {
                    self.reply(Err(why));
                    return false;
                }
            }
        }
        true
    }

    /// The script has ended; it can be run again. The end of a driver is that of the router, whatever it is.
    async fn end(&mut self, end: End) -> bool {
        let stops = end == End::Stop || self.kind == Kind::Driver;
        let value = match end {
            End::End | End::Stop => Ok(String::new()),
            End::Return(value) => Ok(value),
            End::Error(why) => {
                let shown = if why.is_empty() { "error" } else { &why };
                tracing::error!("script \"{}\": {shown}", self.name);
                Err(why)
            }
        };
        if stops {
            self.stop().await;
        }
        self.publish();
        self.idle();
        self.reply(value);
        loop {
            let Some(order) = self.orders.recv().await else { return false };
            // There is nothing to step over.
            if let (Order::Step(_), asker) = order {
                self.idle();
                let _ = asker.send(Ok(String::new()));
            } else if self.takes(order) {
                return true;
            } else {
                self.idle();
            }
        }
    }

    /// Rests behind the end, where steps do nothing.
    fn idle(&self) {
        *lock(&self.shared.load) = Load::default();
    }

    /// Ends the router, or asks the driver for it.
    async fn stop(&mut self) {
        if self.kind == Kind::Driver {
            self.shared.is_over.store(true, Ordering::Relaxed);
        }
        tracing::info!("script \"{}\" stops the router", self.name);
        let call = Call { handler: "stop".to_owned(), argument: String::new() };
        self.write(call).await;
    }

    fn log(&mut self, text: &str) {
        let text: String = text.trim_end().chars().take(LOGGED_MOST).collect();
        for line in text.lines() {
            let (may, left_out) = self.lines.one_more(Instant::now());
            if left_out > 0 {
                tracing::warn!("script \"{}\": {left_out} lines were left out", self.name);
            }
            if may {
                tracing::info!("script \"{}\": {line}", self.name);
            }
        }
    }

    async fn print(&mut self, text: String, file: Option<(String, bool)>) {
        let Some((path, stays)) = file else { return self.log(&text) };
        let shown = path.clone();
        let write = move || {
            let mut options = OpenOptions::new();
            options.create(true).write(true).append(stays).truncate(!stays);
            options.open(&path)?.write_all(text.as_bytes())
        };
        // The file may be one that blocks.
        if let Ok(Err(error)) = tokio::task::spawn_blocking(write).await {
            tracing::error!("script \"{}\": {shown}: {error}", self.name);
        }
    }

    /// The value of a handler; an error is logged, and its value is empty.
    async fn read(&mut self, Call { handler, argument }: Call) -> String {
        let own = handler.strip_prefix(&self.name).and_then(|rest| rest.strip_prefix('.'));
        let name = own.unwrap_or(&handler);
        let value = if let Some(value) = compute(name, &argument) {
            value
        } else if let Some((_, value)) = self.machine.exported().find(|(known, _)| *known == name) {
            Ok(value.to_owned())
        } else {
            let ask = |handler| HandlerCall::Read { handler, argument: argument.clone() };
            let answer = self.ask_in_scope(&handler, ask).await;
            match answer.code {
                status::OK => Ok(answer.data.unwrap_or_default()),
                _ => Err(answer.messages.join(" ")),
            }
        };
        value.unwrap_or_else(|why| {
            tracing::error!("script \"{}\": {handler}: {why}", self.name);
            String::new()
        })
    }

    /// Writes a handler; an error is logged.
    async fn write(&mut self, Call { handler, argument }: Call) -> bool {
        let ask = |handler| HandlerCall::Write { handler, value: argument.clone() };
        let answer = self.ask_in_scope(&handler, ask).await;
        if answer.code != status::OK {
            tracing::error!("script \"{}\": {handler}: {}", self.name, answer.messages.join(" "));
        }
        answer.code == status::OK
    }

    /// Calls a handler of the nearest element of its name: in the script's compound element, or in one around it.
    async fn ask_in_scope(
        &mut self,
        handler: &str,
        call: impl Fn(String) -> HandlerCall,
    ) -> HandlerAnswer {
        let mut scope = self.name.clone();
        loop {
            scope.truncate(scope.rfind('/').unwrap_or(0));
            if scope.is_empty() || !handler.contains('.') {
                return self.ask(call(handler.to_owned())).await;
            }
            let answer = self.ask(call(format!("{scope}/{handler}"))).await;
            if answer.code != status::NO_ELEMENT {
                return answer;
            }
        }
    }

    /// Asks the owner, and records a change.
    async fn ask(&mut self, call: HandlerCall) -> HandlerAnswer {
        self.calls += 1;
        if self.calls.is_multiple_of(CALLS) {
            sleep(PAUSE).await;
        }
        let request = Request::Handler(call);
        let change = audit::change(&request);
        let (to, answer) = oneshot::channel();
        let gone = || said(status::UNSPECIFIED, "the router is shutting down");
        if self.questions.send(Question::Request(request, to)).await.is_err() {
            return gone();
        }
        let answer = match answer.await {
            Ok(Answer::Ok(value)) => serde_json::from_value(value).unwrap_or_else(|_| gone()),
            Ok(Answer::Error(reason)) => said(status::UNSPECIFIED, reason),
            Err(_) => gone(),
        };
        let is_known = !matches!(answer.code, status::NO_ELEMENT | status::NO_HANDLER);
        if let Some(change) = change.filter(|_| is_known) {
            let result = match answer.code {
                status::OK => Answer::Ok(serde_json::Value::Null),
                _ => Answer::Error(answer.messages.join(" ")),
            };
            audit::Client::of_script(&self.name).record(&change, &result);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script of a class, and what it asks the owner.
    fn script(class: &str, config: &str) -> (Scripts, mpsc::Receiver<Question>) {
        let (questions, asked) = mpsc::channel(4);
        let element = Element {
            line: 1,
            name: "s".to_owned(),
            class: class.to_owned(),
            config: config.to_owned(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            to: Vec::new(),
            step: None,
            counts: Vec::new(),
            port: None,
            ways: Vec::new(),
        };
        let mut scripts = Scripts::default();
        scripts.serve(&[element], (&Handle::current(), &questions));
        (scripts, asked)
    }

    fn run<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(test)
    }

    /// The script's tasks go as far as they can.
    async fn settle() {
        for _ in 0..100 {
            yield_now().await;
        }
    }

    /// The handler that a script writes.
    fn written(asked: &mut mpsc::Receiver<Question>) -> Option<String> {
        match asked.try_recv() {
            Ok(Question::Request(Request::Handler(HandlerCall::Write { handler, .. }), _)) => {
                Some(handler)
            }
            Ok(_) => panic!("another question"),
            Err(_) => None,
        }
    }

    #[test]
    fn every_end_of_a_driver_stops_the_router() {
        for config in ["end, pause", "exit", "return 1", "error x", "goto end", "goto stop", "loop"]
        {
            run(async {
                let (scripts, mut asked) = script("DriverManager", config);
                settle().await;
                // `loop` has many jumps first.
                let handler = loop {
                    match written(&mut asked) {
                        Some(handler) => break handler,
                        None => settle().await,
                    }
                };
                assert_eq!(handler, "stop", "{config}");
                assert!(!scripts.intercepts_stop(), "{config}");
            });
        }
        run(async {
            let (scripts, mut asked) = script("Script", "TYPE DRIVER, pause, end");
            settle().await;
            assert!(scripts.intercepts_stop());
            settle().await;
            assert_eq!(written(&mut asked).as_deref(), Some("stop"));
            let (_others, mut asked) = script("Script", "end");
            settle().await;
            assert_eq!(written(&mut asked), None);
        });
    }

    #[test]
    fn a_goto_that_is_refused_executes_nothing() {
        for config in
            ["TYPE PASSIVE, writeq x.y 1", "pause, writeq x.y 1", "wait 1000, write x.y 1"]
        {
            run(async {
                let (scripts, mut asked) = script("Script", config);
                settle().await;
                // The second one is refused for the same reason, not as the script is busy.
                for _ in 0..2 {
                    let answer = scripts.call("s", "goto", "nowhere").unwrap().await.unwrap();
                    assert!(answer.unwrap_err().contains("no label \"nowhere\""));
                    settle().await;
                    assert_eq!(written(&mut asked), None, "{config}");
                }
                let order = if config.starts_with("TYPE") { "run" } else { "step" };
                let _answer = scripts.call("s", order, "").unwrap();
                settle().await;
                assert_eq!(written(&mut asked).as_deref(), Some("x.y"), "{config}");
            });
        }
    }

    #[test]
    fn a_goto_that_is_refused_leaves_the_time_to_wait_for() {
        run(async {
            let (scripts, mut asked) = script("Script", "wait 0.2, write x.y 1");
            settle().await;
            scripts.call("s", "goto", "nowhere").unwrap().await.unwrap().unwrap_err();
            assert!(asked.recv().await.is_some());
        });
    }

    #[test]
    fn steps_of_a_busy_script_are_not_lost() {
        let shared = Shared::default();
        assert!(shared.begin_or_keep(1));
        assert!(!shared.begin() && !shared.begin_or_keep(2));
        // It stays busy for the steps that came, also just before it rests.
        assert_eq!(shared.rest(), 2);
        assert!(!shared.begin_or_keep(u32::MAX) && !shared.begin_or_keep(1));
        assert_eq!((shared.rest(), shared.rest()), (u32::MAX, 0));
        assert!(shared.begin());
    }

    #[test]
    fn lines_of_a_second_are_bounded() {
        let (mut lines, now) = (Lines::default(), Instant::now());
        let logged = (0..250).filter(|_| lines.one_more(now).0).count();
        assert_eq!(logged, LINES_MOST);
        let next = now + Duration::from_secs(1);
        assert_eq!((lines.one_more(next), lines.one_more(next)), ((true, 150), (true, 0)));
    }

    #[test]
    fn a_script_with_much_work_leaves_others_their_turn() {
        run(async {
            let work = "set a $(add 1 2),".repeat(900);
            let (scripts, _asked) = script("Script", &format!("label x, {work} goto x"));
            yield_now().await;
            // It has begun and is busy still.
            assert!(scripts.call("s", "run", "").is_err());
            while scripts.call("s", "run", "").is_err() {
                yield_now().await;
            }
        });
    }
}
