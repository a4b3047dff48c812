//! The Lua state of a forwarder.
//!
//! Unsafe here, with its reason: LuaJIT's foreign function interface, which reads packets through the
//! pointers of [`Context`]. Only the prelude has the interface; it gives steps no pointer and no array, and
//! checks every offset beyond the 64 bytes that each slot of a burst has (see there). The pointers are set
//! for each call from the forwarder's batch, and used only within the call. Objects of `shared.rs` are used
//! by their addresses, and kept as long as the state.
#![allow(unsafe_code)] // A marked hot spot: see above.

use std::any::Any;
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ops::Deref;
use std::ptr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use dataplane::batch::{Batch, Marks};
use dataplane::catalogue::Catalogue;
use dataplane::category::Categories;
use dataplane::graph::{Graph, MAX_OUTPUTS, Step};
use dataplane::mask::Mask;
use dataplane::plan::{PlanError, Plans};
use dataplane::port::{MAX_PORTS, PortId};
use dataplane::tables::Tables;
use mlua::{Function, LightUserData, Lua, LuaOptions, StdLib, Table, ffi};

use crate::peers::Peers;
use crate::shared::{
    Buckets, Key, SHARED_MAX, SHARED_SIZE, SharedObjects, SharedSettings, Table as SharedTable,
};
use crate::status::{CounterNames, ScriptCounters, StepStatus};
use crate::step::{LuaStep, StepSettings};
use crate::watchdog::{OVERRUN, Watch, Watchdog, stop};

/// Most outputs of a step in Lua; one more is for its failures.
pub(crate) const OUTPUTS_MAX: usize = MAX_OUTPUTS - 1;

/// Most memory of one forwarder's script.
const MEMORY: usize = 256 << 20;

/// Longest time that the script may run until its steps are made, in microseconds of processor time.
const LOAD_BUDGET_US: u64 = if cfg!(test) { 200_000 } else { 5_000_000 };

/// Reason for which a script cannot run on a forwarder.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct LoadError(String);

impl From<mlua::Error> for LoadError {
    fn from(error: mlua::Error) -> Self {
        Self(error.to_string())
    }
}

/// Parameters and results of a call into Lua; `tp_context` in the prelude. The fields that every call needs
/// come first, in one cache line, which is evicted from the nearest cache between two batches.
#[repr(C, align(64))]
struct Context {
    heads: *const *mut u8,
    /// Number of accessible bytes from each head on.
    lens: *const u16,
    /// Lengths of the packets, greater than `lens` for a packet in several buffers.
    whole: *const u16,
    input: u64,
    /// Ports with packets in `mirrored`, one bit each.
    mirrors: u64,
    marks: *mut Marks,
    port: u32,
    /// Time at which the batch was received, in TSC cycles.
    now: u64,
    out: [u64; OUTPUTS_MAX],
    counters: *const AtomicU64,
    traces: *const AtomicU64,
    /// Packets to copy, by destination port.
    mirrored: [u64; MAX_PORTS],
    categories: *const Categories,
}

/// Statistics of one forwarder's JIT compiler.
#[derive(Debug, Default)]
pub struct JitStatus {
    /// Traces compiled, aborted; number of flushes.
    counts: [AtomicU64; 3],
    last_abort: Mutex<Option<String>>,
}

impl JitStatus {
    /// Returns the numbers of traces compiled, traces aborted and flushes.
    pub fn counts(&self) -> [u64; 3] {
        [0, 1, 2].map(|k: usize| self.counts[k].load(Ordering::Relaxed))
    }

    /// Returns the reason and the place of the last aborted trace.
    pub fn last_abort(&self) -> Option<String> {
        self.last_abort.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A loaded script, before its steps are taken out of it.
pub struct ForwarderLua {
    state: StateHandle,
    runner: Function,
}

/// The state of all Lua steps of one forwarder.
pub(crate) struct State {
    context: UnsafeCell<Box<Context>>,
    /// A thread of the state with a stack of its own: first the function that makes tracebacks, then the
    /// functions of the steps. The registry keeps it alive.
    stack: *mut ffi::lua_State,
    watch: Arc<Watch>,
    counters: Arc<ScriptCounters>,
    jit: Arc<JitStatus>,
    /// Objects that the script shares with those of other forwarders: their pointers are in the interpreter.
    shared: Shared,
    /// Forwarders whose counters are added up: the interpreter has the address.
    peers: Arc<Peers>,
    /// Last, so that it is dropped last.
    lua: Lua,
}

/// A step's share of its state. The steps of one state always stay together: one alone
/// ([`ForwarderLua::into_step`]), or a bundle ([`LuaSteps`]), which becomes part of a graph as a whole.
#[derive(Clone)]
pub(crate) struct StateHandle(Rc<State>);

// SAFETY: all handles of a state move together, with the reference count and everything that refers into the
// state. `ForwarderLua`, which has the first one, stays on its thread and ends by making the steps. A single
// step has the only handle. Those of a bundle are private to it until `LuaSteps::build` gives them to
// `Plans::build`, which puts them into the graph that it returns or drops them; a `Graph` never lends its
// steps or gives them away. So they are used, moved and dropped by the thread that owns the whole.
unsafe impl Send for StateHandle {}

impl Deref for StateHandle {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}

/// The Lua steps of one forwarder's graph. They share a Lua state, so they cannot be taken out one by one:
/// the whole bundle becomes a graph.
///
/// ```compile_fail
/// fn split(steps: script::LuaSteps) -> Vec<script::LuaStep> { steps.steps }
/// ```
#[derive(Default)]
pub struct LuaSteps {
    steps: Vec<LuaStep>,
}

impl LuaSteps {
    /// Iterates over the names and the status of the steps.
    pub fn status(&self) -> impl Iterator<Item = (&str, Arc<StepStatus>)> {
        self.steps.iter().map(|step| (step.name(), step.status()))
    }

    /// Builds the graph of these plans ([`Plans::build`]), with these steps for the kinds that the catalogue
    /// only describes.
    ///
    /// # Errors
    /// The plans are invalid, or a step is missing here.
    pub fn build(
        self,
        plans: &Plans,
        catalogue: &Catalogue,
        tables: &Arc<Tables>,
        port_names: &[String],
    ) -> Result<Graph, PlanError> {
        let mut by_kind: HashMap<String, Vec<LuaStep>> = HashMap::new();
        for step in self.steps {
            by_kind.entry(step.name().to_owned()).or_default().push(step);
        }
        let mut take =
            |kind: &str| -> Option<Box<dyn Step>> { Some(Box::new(by_kind.get_mut(kind)?.pop()?)) };
        plans.build(catalogue, tables, port_names, &mut take)
    }
}

/// Keeps the objects alive that a script points to.
type Shared = Arc<Mutex<Vec<(Arc<dyn Any + Send + Sync>, SharedSettings)>>>;

/// Inputs for loading a script.
pub struct ScriptSource<'a> {
    /// The configuration's text.
    pub text: &'a str,
    /// Name of the file, for messages.
    pub file: &'a str,
    /// Names of the ports, by number.
    pub ports: &'a [String],
    /// Names of the categories that rules assign to packets, by number.
    pub categories: &'a [String],
    /// Objects shared by the forwarders' scripts.
    pub shared: &'a Arc<SharedObjects>,
    /// Forwarders whose counters are added to this one's.
    pub peers: &'a Arc<Peers>,
}

impl ForwarderLua {
    /// Runs the script in a state of its own.
    ///
    /// # Errors
    /// The script fails there.
    pub fn load(source: &ScriptSource<'_>, watchdog: &Watchdog) -> Result<Self, LoadError> {
        let libraries = StdLib::TABLE
            | StdLib::STRING
            | StdLib::MATH
            | StdLib::BIT
            | StdLib::JIT
            | StdLib::FFI
            | StdLib::DEBUG;
        // SAFETY: the interface and the debug library stay with the prelude, see the module's text.
        let lua = unsafe { Lua::unsafe_new_with(libraries, LuaOptions::default()) };
        lua.set_memory_limit(MEMORY)?;
        let counters = Arc::new(ScriptCounters::default());
        let jit = Arc::new(JitStatus::default());
        let context = Box::new(Context {
            heads: ptr::null(),
            lens: ptr::null(),
            whole: ptr::null(),
            input: 0,
            mirrors: 0,
            marks: ptr::null_mut(),
            port: 0,
            now: 0,
            out: [0; OUTPUTS_MAX],
            counters: counters.as_ptr(),
            traces: jit.counts.as_ptr(),
            mirrored: [0; MAX_PORTS],
            categories: ptr::null(),
        });
        let stack = new_stack(&lua, source.file)?;
        let watch = Watch::new(stack);
        let (context, shared) = (UnsafeCell::new(context), Shared::default());
        let peers = source.peers.clone();
        let state = State { context, stack, watch, counters, jit, shared, peers, lua };
        state.check_interruptible()?;
        watchdog.add(state.watch.clone());
        let runner = state.within_budget(|state| state.run_prelude(source))?;
        source.peers.join(&state.counters);
        Ok(Self { state: StateHandle(Rc::new(state)), runner })
    }

    /// Returns the counters that the script makes on this forwarder.
    pub fn counters(&self) -> Arc<ScriptCounters> {
        self.state.counters.clone()
    }

    /// Returns the statistics of its JIT compiler.
    pub fn jit(&self) -> Arc<JitStatus> {
        self.state.jit.clone()
    }

    /// Makes a step; called once for each time the step stands in a graph.
    fn step(&self, settings: &StepSettings) -> Result<LuaStep, LoadError> {
        let names: Vec<_> = settings.outputs.iter().chain(&settings.drops).cloned().collect();
        let call = |_: &State| Ok(self.runner.call((settings.name.clone(), names))?);
        let function: Function = self.state.within_budget(call)?;
        let place = self.state.keep(function)?;
        Ok(LuaStep::new(settings.clone(), self.state.clone(), place))
    }

    /// Makes the only step of a graph.
    ///
    /// # Errors
    /// The script did not make it.
    pub fn into_step(self, wanted: &StepSettings) -> Result<LuaStep, LoadError> {
        self.step(wanted)
    }

    /// Makes these steps, which stay together; one may be requested several times.
    ///
    /// # Errors
    /// The script did not make one of them.
    pub fn into_steps<'a>(
        self,
        wanted: impl IntoIterator<Item = &'a StepSettings>,
    ) -> Result<LuaSteps, LoadError> {
        let steps = wanted.into_iter().map(|settings| self.step(settings));
        Ok(LuaSteps { steps: steps.collect::<Result<_, _>>()? })
    }
}

/// Makes a thread of the state, with the traceback function at the bottom of its stack.
fn new_stack(lua: &Lua, file: &str) -> Result<*mut ffi::lua_State, LoadError> {
    let debug: Table = lua.globals().get("debug")?;
    let handler = lua.load(include_str!("lua/traceback.lua")).set_name("=traceback.lua");
    let handler: Function = handler.call((debug, file))?;
    let mut stack = ptr::null_mut();
    // SAFETY: within `exec_raw` the stack has the handler on top and room; the new thread is kept in the
    // registry, so it lives as long as the state.
    unsafe {
        lua.exec_raw::<()>(handler, |state| {
            stack = ffi::lua_newthread(state);
            ffi::lua_insert(state, -2);
            ffi::lua_xmove(state, stack, 1);
            ffi::luaL_ref(state, ffi::LUA_REGISTRYINDEX);
        })?;
    }
    Ok(stack)
}

impl State {
    /// Runs code of the script within the loading budget, outside the packet path.
    fn within_budget<T>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        self.watch.set_loading(true);
        self.watch.enter(LOAD_BUDGET_US);
        let result = work(self);
        self.watch.set_loading(false);
        if self.watch.leave() {
            // SAFETY: the state belongs to this thread.
            unsafe { ffi::lua_sethook(self.stack, None, 0, 0) };
        }
        result
    }

    fn run_prelude(&self, source: &ScriptSource<'_>) -> Result<Function, LoadError> {
        let globals = self.lua.globals();
        let host = self.lua.create_table()?;
        let light = |pointer: *const c_void| LightUserData(pointer.cast_mut());
        // SAFETY: only the address is taken.
        let context = unsafe { ptr::from_ref::<Context>(&**self.context.get()) };
        host.set("context", light(context.cast()))?;
        host.set("next_set", light(next_set as extern "C" fn(u64, i32) -> i32 as *const c_void))?;
        host.set("count_set", light(count_set as extern "C" fn(u64) -> i32 as *const c_void))?;
        let reasons = self.lua.create_table()?;
        for (code, reason) in (0..).zip(ABORT_REASONS) {
            reasons.raw_set(code, *reason)?;
        }
        host.set("abort_reasons", reasons)?;
        let jit = self.jit.clone();
        let aborted = move |_: &Lua, reason: String| {
            *jit.last_abort.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
            Ok(())
        };
        host.set("aborted", self.lua.create_function(aborted)?)?;
        let names = Mutex::new(CounterNames::default());
        let counter = move |_: &Lua, (name, size): (String, usize)| {
            let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
            names.register(&name, size).map_err(mlua::Error::runtime)
        };
        host.set("counter", self.lua.create_function(counter)?)?;
        self.add_shared(&host, source.shared)?;
        let sum = counter_sum as extern "C" fn(_, _) -> _ as *const c_void;
        host.set("counter_sum", light(sum))?;
        host.set("peers", light(Arc::as_ptr(&self.peers).cast()))?;
        let helpers = self.lua.load(crate::HELPERS).set_name("=helpers.lua").into_function()?;
        host.set("helpers", helpers)?;
        let bound = |lua: &Lua, (string, table): (Table, Table)| {
            crate::pattern::install(lua, &string, &table)
        };
        host.set("bound", self.lua.create_function(bound)?)?;
        let numbered = |names: &[String]| {
            let table = self.lua.create_table()?;
            for (number, name) in (0..).zip(names) {
                table.raw_set(number, name.as_str())?;
            }
            Ok::<_, mlua::Error>(table)
        };
        let ports = numbered(source.ports)?;
        host.set("categories", numbered(source.categories)?)?;
        let ffi: mlua::Value = globals.get("ffi")?;
        let jit: mlua::Value = globals.get("jit")?;
        let debug: mlua::Value = globals.get("debug")?;
        let chunk = format!("={}", source.file);
        let prelude = self.lua.load(include_str!("lua/prelude.lua")).set_name("=prelude.lua");
        Ok(prelude.call((ffi, jit, debug, host, ports, source.text, chunk))?)
    }

    /// Adds the host functions of `turnpike.now`, `turnpike.buckets` and `turnpike.table`.
    fn add_shared(&self, host: &Table, objects: &Arc<SharedObjects>) -> Result<(), LoadError> {
        let kept = (self.shared.clone(), objects.clone());
        let buckets = move |_: &Lua, (name, rate, burst, size): (String, f64, f64, usize)| {
            let settings = SharedSettings::Buckets { rate, burst, size };
            keep_shared::<Buckets>(&kept, &name, settings)
        };
        host.set("buckets", self.lua.create_function(buckets)?)?;
        let kept = (self.shared.clone(), objects.clone());
        let table = move |_: &Lua, (name, size, seconds): (String, usize, f64)| {
            keep_shared::<SharedTable>(&kept, &name, SharedSettings::Table { size, seconds })
        };
        host.set("table", self.lua.create_function(table)?)?;
        let functions = [
            ("bucket_take", bucket_take as extern "C" fn(_, _, _, _, _, _, _) -> _ as *mut c_void),
            ("table_get", table_get as extern "C" fn(_, _, _, _, _, _) -> _ as *mut c_void),
            ("table_set", table_set as extern "C" fn(_, _, _, _, _, _, _) as *mut c_void),
            ("table_add", table_add as extern "C" fn(_, _, _, _, _, _, _) -> _ as *mut c_void),
            ("table_remove", table_remove as extern "C" fn(_, _, _, _, _) as *mut c_void),
        ];
        for (name, function) in functions {
            host.set(name, LightUserData(function))?;
        }
        host.set("shared_max", SHARED_MAX)?;
        host.set("shared_size", SHARED_SIZE)?;
        host.set("ns", 1e9 / dpdk::tsc_hz() as f64)?;
        // Origin of time, the same for all forwarders, so that times are small numbers.
        host.set("start", *START.get_or_init(dpdk::tsc) as f64)?;
        Ok(())
    }

    /// Turns the compiler off.
    #[cfg(test)]
    pub(crate) fn interpret(&self) {
        self.lua.load("jit.off() jit.flush()").exec().unwrap();
    }

    pub(crate) fn jit(&self) -> Arc<JitStatus> {
        self.jit.clone()
    }

    /// Discards all compiled traces.
    pub(crate) fn flush(&self) -> Result<(), LoadError> {
        Ok(self.lua.load("jit.flush()").exec()?)
    }

    /// Stops garbage collection, and returns the bytes that the state holds, garbage included.
    #[cfg(test)]
    pub(crate) fn memory_without_collection(&self) -> usize {
        self.lua.gc_stop();
        self.lua.used_memory()
    }

    /// Pushes a function onto the stack of the calls; returns its position there.
    fn keep(&self, function: Function) -> Result<c_int, LoadError> {
        let stack = self.stack;
        let mut place = 0;
        // SAFETY: within `exec_raw` the function is on top; both stacks are of one state.
        unsafe {
            self.lua.exec_raw::<()>(function, |state| {
                ffi::lua_xmove(state, stack, 1);
                place = ffi::lua_gettop(stack);
                // Room for the next function, and for a call.
                ffi::lua_checkstack(stack, 8);
            })?;
        }
        Ok(place)
    }

    /// Calls the function at this position for the packets of `input`, for at most `budget_us`.
    ///
    /// # Errors
    /// The error that the function raised, with a traceback, and true if it exceeded its budget.
    #[inline]
    pub(crate) fn call(
        &self,
        place: c_int,
        budget_us: u64,
        batch: &mut Batch,
        input: Mask,
    ) -> Result<&[u64; OUTPUTS_MAX], (String, bool)> {
        let (heads, lens, whole) = batch.addresses();
        // SAFETY: the thread that owns the graph is the only one here, and no reference into the context is
        // held during the call, in which Lua writes to it. The addresses are those of the batch's slots,
        // which stay where they are while `batch` is borrowed. The stack has the handler at 1 and the
        // function at `place`, and room for a copy.
        unsafe {
            let context: *mut Context = &raw mut **self.context.get();
            (*context).heads = heads;
            (*context).lens = lens;
            (*context).whole = whole;
            (*context).input = input.0;
            (*context).marks = &raw mut batch.marks;
            (*context).categories = &raw const batch.categories;
            (*context).now = batch.now;
            (*context).port = batch.in_port.index() as u32;
            ffi::lua_pushvalue(self.stack, place);
            self.watch.enter(budget_us);
            let status = ffi::lua_pcall(self.stack, 0, 0, 1);
            if self.watch.leave() {
                ffi::lua_sethook(self.stack, None, 0, 0);
            }
            let mirrors = std::mem::take(&mut (*context).mirrors);
            if mirrors != 0 {
                let wanted = if status == 0 { input } else { Mask::EMPTY };
                mirror(batch, Mask(mirrors), &mut (*context).mirrored, wanted);
            }
            if status != 0 {
                return Err(self.failure());
            }
            Ok(&(*context).out)
        }
    }

    /// Pops the error off the stack.
    #[cold]
    fn failure(&self) -> (String, bool) {
        // SAFETY: the error is on top, and the call has left nothing else there; its bytes are copied
        // before they are popped.
        let message = unsafe {
            let mut length = 0;
            let text = ffi::lua_tolstring(self.stack, -1, &raw mut length);
            let message = if text.is_null() {
                "an error that is no text".to_owned()
            } else {
                String::from_utf8_lossy(std::slice::from_raw_parts(text.cast(), length))
                    .into_owned()
            };
            ffi::lua_settop(self.stack, -2);
            message
        };
        let overrun = message.contains(OVERRUN);
        let (first, calls) = message.split_at(message.find('\n').unwrap_or(message.len()));
        (format!("{first}{}{calls}", crate::way_out(first)), overrun)
    }

    /// Sets the hook in a compiled loop, and checks that the loop stops.
    fn check_interruptible(&self) -> Result<(), LoadError> {
        let mut probe = Probe { calls: 0, state: self.stack };
        let ffi: mlua::Value = self.lua.globals().get("ffi")?;
        let address = ptr::from_mut(&mut probe).cast::<c_void>();
        let arm = LightUserData(arm as extern "C" fn(*mut Probe) as *mut c_void);
        let spin = self.lua.load(PROBE).set_name("=probe");
        let spin: Function = spin.call((ffi, arm, LightUserData(address)))?;
        let place = self.keep(spin)?;
        // SAFETY: the function is on top of the stack, above the handler; it is taken off by the call.
        unsafe {
            let status = ffi::lua_pcall(self.stack, 0, 0, 1);
            ffi::lua_sethook(self.stack, None, 0, 0);
            if status != 0 {
                ffi::lua_settop(self.stack, place - 1);
            }
        }
        if probe.calls > ARMED_AT + 10 {
            let message = "this binary's LuaJIT cannot stop a compiled loop that does not end; build it with \
                           TARGET_CFLAGS=-DLUAJIT_ENABLE_CHECKHOOK in the environment, as .cargo/config.toml \
                           does, after `cargo clean -p mlua-sys`";
            return Err(LoadError(message.to_owned()));
        }
        Ok(())
    }
}

/// Origin of the scripts' time.
static START: OnceLock<u64> = OnceLock::new();

/// Finds or makes an object, keeps it as long as the state lives, and returns its address.
fn keep_shared<T: Any + Send + Sync>(
    (kept, objects): &(Shared, Arc<SharedObjects>),
    name: &str,
    settings: SharedSettings,
) -> mlua::Result<LightUserData> {
    let fail = |message: String| mlua::Error::runtime(format!("\"{name}\": {message}"));
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    settings.check_beside(kept.iter().map(|(_, settings)| settings)).map_err(fail)?;
    let object = objects.get(name, settings);
    let typed = object.clone().downcast::<T>();
    let typed = typed.map_err(|_| fail("an object of another kind".to_owned()))?;
    if !kept.iter().any(|(known, _)| Arc::ptr_eq(known, &object)) {
        kept.push((object, settings));
    }
    Ok(LightUserData(Arc::as_ptr(&typed).cast_mut().cast()))
}

/// Returns the sum of a counter over the forwarders.
extern "C" fn counter_sum(peers: *const Peers, index: i32) -> f64 {
    // SAFETY: the prelude passes the address set by `run_prelude`, of an object that the state keeps.
    unsafe { &*peers }.sum(index as usize) as f64
}

/// Takes tokens from the bucket of a key.
extern "C" fn bucket_take(
    buckets: *const Buckets,
    amount: f64,
    now: u64,
    a: f64,
    b: f64,
    c: f64,
    d: f64,
) -> bool {
    let key: Key = [a, b, c, d];
    // SAFETY: the prelude passes only addresses that `keep_shared::<Buckets>` returned, and the state keeps
    // these objects.
    unsafe { &*buckets }.take(amount, now, key)
}

/// Returns the value of a key; not a number if there is none.
extern "C" fn table_get(
    table: *const SharedTable,
    now: u64,
    a: f64,
    b: f64,
    c: f64,
    d: f64,
) -> f64 {
    // SAFETY: as in `bucket_take`, with `keep_shared::<SharedTable>`.
    unsafe { &*table }.get(now, [a, b, c, d]).unwrap_or(f64::NAN)
}

/// Sets the value of a key.
extern "C" fn table_set(
    table: *const SharedTable,
    value: f64,
    now: u64,
    a: f64,
    b: f64,
    c: f64,
    d: f64,
) {
    // SAFETY: as in `table_get`.
    unsafe { &*table }.set(value, now, [a, b, c, d]);
}

/// Adds to a key's value; returns the sum.
extern "C" fn table_add(
    table: *const SharedTable,
    amount: f64,
    now: u64,
    a: f64,
    b: f64,
    c: f64,
    d: f64,
) -> f64 {
    // SAFETY: as in `table_get`.
    unsafe { &*table }.add(amount, now, [a, b, c, d])
}

/// Removes a key.
extern "C" fn table_remove(table: *const SharedTable, a: f64, b: f64, c: f64, d: f64) {
    // SAFETY: as in `table_get`.
    unsafe { &*table }.remove([a, b, c, d]);
}

/// Makes the copies of `wanted` packets that a call has requested, and clears the requests.
#[cold]
fn mirror(batch: &mut Batch, ports: Mask, mirrored: &mut [u64; MAX_PORTS], wanted: Mask) {
    for index in ports.slots() {
        let packets = Mask(std::mem::take(&mut mirrored[index]));
        if let Some(port) = PortId::new(index as u16) {
            batch.mirror(packets & wanted, port);
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.watch.retire();
    }
}

/// A loop that is compiled long before it ends.
const PROBE: &str = "
    local ffi, arm, probe = ...
    arm = ffi.cast('void (*)(void *)', arm)
    probe = ffi.cast('void *', probe)
    return function() for _ = 1, 4000 do arm(probe) end end
";

/// The call at which the probe sets the hook.
const ARMED_AT: u32 = 1000;

struct Probe {
    calls: u32,
    state: *mut ffi::lua_State,
}

extern "C" fn arm(probe: *mut Probe) {
    // SAFETY: the probe's loop passes on the pointer it was given, which lives until the loop has ended;
    // setting a hook is allowed at any time.
    unsafe {
        (*probe).calls += 1;
        if (*probe).calls == ARMED_AT {
            ffi::lua_sethook((*probe).state, Some(stop), ffi::LUA_MASKCOUNT, 1);
        }
    }
}

/// Returns the first slot from `from` on; 64 if there is none.
extern "C" fn next_set(bits: u64, from: i32) -> i32 {
    let from = from.clamp(0, 64) as u32;
    let rest = bits.checked_shr(from).unwrap_or(0);
    if rest == 0 { 64 } else { (from + rest.trailing_zeros()) as i32 }
}

extern "C" fn count_set(bits: u64) -> i32 {
    bits.count_ones() as i32
}

/// LuaJIT's reasons for aborting a trace, in the order of `lj_traceerr.h`.
const ABORT_REASONS: &[&str] = &[
    "error thrown or hook called during recording",
    "trace too short",
    "trace too long",
    "trace too deep",
    "too many snapshots",
    "blacklisted",
    "retry recording",
    "NYI: bytecode %s",
    "leaving loop in root trace",
    "inner loop in root trace",
    "loop unroll limit reached",
    "bad argument type",
    "JIT compilation disabled for function",
    "call unroll limit reached",
    "down-recursion, restarting",
    "NYI: unsupported variant of FastFunc %s",
    "NYI: return to lower frame",
    "store with nil or NaN key",
    "missing metamethod",
    "looping index lookup",
    "NYI: mixed sparse/dense table",
    "symbol not in cache",
    "NYI: unsupported C type conversion",
    "NYI: unsupported C function type",
    "guard would always fail",
    "too many PHIs",
    "persistent type instability",
    "failed to allocate mcode memory",
    "machine code too long",
    "hit mcode limit (retrying)",
    "too many spill slots",
    "inconsistent register allocation",
    "NYI: cannot assemble IR instruction %d",
    "NYI: PHI shuffling too complex",
    "NYI: register coalescing too complex",
];
