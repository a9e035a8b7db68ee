"""Kills the worker of adv4b.rs again and again, while the stock CLI signals and a relay drains; then checks everything."""
import json, os, random, subprocess, sys, tempfile, time, collections
dir = tempfile.mkdtemp()
env = dict(os.environ, HAPAX_STORE=f"sqlite:{dir}/x.db", ADV_LOG=f"{dir}/log")
ADV, HAPAX = "/work/td/debug/examples/adv4b", "/work/td/debug/hapax"
def run(*a, prog=HAPAX): return subprocess.run([prog, *a], env=env, capture_output=True, text=True)
random.seed(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
kills = int(sys.argv[2]) if len(sys.argv) > 2 else 40
sent = set(); t0 = time.time()
relay = None
second = None
for k in range(kills):
    w = subprocess.Popen([ADV, "worker"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if second is None or second.poll() is not None: second = subprocess.Popen([ADV, 'worker'], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    elif random.random() < .4: second.kill(); second.wait(); second = None
    end = time.time() + random.uniform(0.02, float(sys.argv[3]) if len(sys.argv) > 3 else 0.6)
    if relay is None and os.path.exists(f"{dir}/x.db"):
        relay = subprocess.Popen([HAPAX, "relay", "--to", f"file:{dir}/out", "--poll", "1s"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while time.time() < end and w.poll() is None:
        todo = [(r, n) for r in range(8) for n in range(4) if (r, n) not in sent and (n == 0 or (r, n-1) in sent)]
        if todo and random.random() < .7:
            r, n = random.choice(todo)
            o = run("signal", f"r{r}", "s", str(n), "--id", f"s{n}")
            if o.returncode == 0: sent.add((r, n))
            elif "HX0028" not in o.stderr and o.returncode not in (3,): print("signal", r, n, o.returncode, o.stderr)
        if random.random() < .15: run("signal", f"r{random.randrange(8)}", "hurry", '"now"')
        if random.random() < .1:
            o = run("replay", "--all", prog=ADV)
            if o.returncode: print("REPLAY", o.returncode, o.stdout, o.stderr)
    w.kill(); out, err = w.communicate()
    if "panicked" in err: print("PANIC", err)
    if relay and random.random() < .3: relay.kill(); relay.wait(); relay = None
while len(sent) < 32:
    for r in range(8):
        for n in range(4):
            if (r, n) not in sent and run("signal", f"r{r}", "s", str(n), "--id", f"s{n}").returncode == 0: sent.add((r, n))
if relay: relay.kill(); relay.wait()
if second: second.kill(); second.wait()
print("kills done", time.time() - t0)
w = subprocess.run([ADV, "worker"], env=env, capture_output=True, text=True, timeout=60)
print(w.returncode, w.stderr[-500:])
for line in w.stdout.splitlines():
    st = json.loads(line.split(" ", 1)[1])
    want = [f"{n}:{n}:{n}:true" for n in range(4)] + ["over"]
    if st["log"] != want or st["sum"] != 8 or st["round"] != 3: print("STATE", line)
keys = collections.defaultdict(set)
raw = 0
for l in open(f"{dir}/log"):
    raw += 1; what, key = l.strip().rsplit(" ", 1); keys[what].add(key)
print("calls", raw, "whats", len(keys), "expected", 8 * 4 * 4)
for what, ks in keys.items():
    if len(ks) != 1: print("KEYS", what, ks)
print(run("relay", "--to", f"file:{dir}/out", "--drain").stderr)
seen, order, lines = {}, collections.defaultdict(list), 0
for l in open(f"{dir}/out"):
    try: m = json.loads(l)
    except Exception: print("cut line"); continue
    lines += 1
    if m["id"] in seen:
        if seen[m["id"]] != m: print("MSG DIFFERS", m, seen[m["id"]])
        continue
    seen[m["id"]] = m; order[(m["run"], m["topic"])].append(m["payload"])
for r in range(8):
    want = [f"{n} {x}" for n in range(4) for x in ("a", "b", "c", "S", "S", "end")]
    got = [g if g.split()[1] not in "xy" else g.split()[0] + " S" for g in order[(f"r{r}", "t")]]
    if got != want: print("ORDER", r, order[(f"r{r}", "t")])
    for n in range(4):
        if order[(f"r{r}-{n}", "k")] != [n]: print("KID MSG", r, n, order[(f"r{r}-{n}", "k")])
print("messages", len(seen), "lines", lines)
for r in range(8):
    for name in [f"r{r}"] + [f"r{r}-{n}" for n in range(4)]:
        o = run("replay", name, prog=ADV)
        if o.returncode: print("REPLAY", name, o.stdout, o.stderr)
o = run("doctor"); print("doctor", o.returncode, o.stdout.splitlines()[-1] if o.stdout else o.stderr)
o = run("list", "--json", "--limit", "100"); print({x["status"] if isinstance(x["status"], str) else json.dumps(x["status"]) for x in json.loads(o.stdout)["runs"]})
o = run("tail", "r3"); print(o.stdout[-400:], o.stderr)
print(dir)
