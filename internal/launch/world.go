package launch

import (
	"context"
	"fmt"
	"strings"
)

// World is the place of this process in its job.
type World struct {
	// Source is the convention that was used: "config", "GOLLECTIVE_*",
	// "torchrun", "Open MPI", "Hydra (PMI)", "Slurm (PMI)", "Slurm", "Kubernetes"
	// or "none".
	Source string
	// Rank is in [0, Size).
	Rank, Size int
	// LocalRank and LocalSize count the processes of this job on this host;
	// -1 and 0 where the launcher doesn't say.
	LocalRank, LocalSize int
	// Rendezvous is how the processes find each other; its Kind is Alone in a
	// world of one that was given no meeting place.
	Rendezvous Rendezvous
	// Notes are sentences for the log: what else was found and why it wasn't used.
	Notes []string
}

// String is one line for the log, without secrets.
func (w World) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rank %d of %d", w.Rank, w.Size)
	if w.LocalSize > 0 {
		fmt.Fprintf(&b, ", local rank %d of %d", w.LocalRank, w.LocalSize)
	}
	fmt.Fprintf(&b, ", from %s; rendezvous: %s", w.Source, w.Rendezvous)
	return b.String()
}

// Explicit is what the caller's configuration says; the zero value says nothing.
type Explicit struct {
	// Rank and Size are given when Size > 0.
	Rank, Size int
	// LocalRank and LocalSize are given when LocalSize > 0, and need Size.
	LocalRank, LocalSize int
	// ID is the text of a unique id, Root the host:port rank 0 listens on; at
	// most one of them. Either may be given without Size.
	ID, Root string
}

// Variables are the names of ours that Find reads.
func Variables() []string {
	return []string{envRank, envSize, envLocalRank, envLocalSize, envCommID, envRoot, envJobKey, envSubdomain}
}

const (
	envRank      = "GOLLECTIVE_RANK"
	envSize      = "GOLLECTIVE_SIZE"
	envLocalRank = "GOLLECTIVE_LOCAL_RANK"
	envLocalSize = "GOLLECTIVE_LOCAL_SIZE"
	// NCCL_COMM_ID is host:port; ours takes that too, besides the text of an id.
	envCommID    = "GOLLECTIVE_COMM_ID"
	envRoot      = "GOLLECTIVE_ROOT"
	envJobKey    = "GOLLECTIVE_JOB_KEY"
	envSubdomain = "GOLLECTIVE_SUBDOMAIN"
)

// maxSize bounds every rank and size read from outside, so that sums of them
// can't overflow and an absurd value is called one.
const maxSize = 1 << 24

// claim is what one convention says about this process. A rank of -1 or a size
// of 0 is unknown: the claim is partial then.
type claim struct {
	source               string
	rank, size           int
	localRank, localSize int
	rankVar, sizeVar     string // for errors
	missing              string // what a partial claim lacks and what to do about it
	key                  Key
	// meet makes the convention's own rendezvous; nil when it has none, and then
	// needs says what to set instead. It runs only for the chosen claim.
	meet  func() (Rendezvous, error)
	needs string
}

func (c *claim) complete() bool { return c.rank >= 0 && c.size > 0 }

// launchers in the order in which they are asked. Each returns nil when none of
// its variables is set.
var launchers = []func(*environment) (*claim, error){
	torchrun, openMPI, hydra, slurm, kubernetes,
}

// Find finds the world of this process: from explicit where it is complete, else
// from the environment read through getenv (os.LookupEnv). ctx bounds the one
// case that talks to a launcher (PMI_PORT); Rendezvous.Release gives that
// connection back when the rendezvous isn't used.
//
// Errors are ErrIncomplete (a set of variables lacks a part), ErrConflict (two
// of them disagree), ErrValue (one can't be what it should be),
// ErrNoRendezvous (who is known, but not where) or ErrLauncher (it doesn't
// answer as it should).
func Find(ctx context.Context, explicit Explicit, getenv func(string) (string, bool)) (World, error) {
	return find(ctx, explicit, newEnvironment(ctx, getenv))
}

func find(ctx context.Context, explicit Explicit, env *environment) (world World, err error) {
	defer func() {
		if err != nil || world.Rendezvous.Kind != Store {
			env.release()
		}
	}()
	chosen, err := fromConfig(explicit)
	if err != nil {
		return World{}, err
	}
	var notes []string
	if chosen == nil {
		if chosen, notes, err = fromEnvironment(env); err != nil {
			return World{}, err
		}
	}
	if err := chosen.check(); err != nil {
		return World{}, err
	}
	world = World{
		Source: chosen.source, Rank: chosen.rank, Size: chosen.size,
		LocalRank: chosen.localRank, LocalSize: chosen.localSize, Notes: notes,
	}
	world.Rendezvous, err = meetingPlace(explicit, env, chosen)
	if err != nil {
		return World{}, err
	}
	return world, nil
}

// fromConfig is nil when e gives no size.
func fromConfig(e Explicit) (*claim, error) {
	if e.Size < 0 || e.LocalSize < 0 {
		return nil, valuef("config: sizes are negative: Size %d, LocalSize %d", e.Size, e.LocalSize)
	}
	if e.Size == 0 {
		if e.Rank != 0 || e.LocalRank != 0 || e.LocalSize != 0 {
			return nil, fmt.Errorf("%w: config: a rank is given but Size is 0", ErrIncomplete)
		}
		return nil, nil
	}
	if e.Rank < 0 {
		return nil, valuef("config: Rank is %d", e.Rank)
	}
	c := &claim{
		source: "config", rank: e.Rank, size: e.Size, rankVar: "Rank", sizeVar: "Size",
		localRank: -1, needs: "give a unique id or a root address in the config, or set " + envCommID + " or " + envRoot,
	}
	if e.LocalSize > 0 {
		c.localRank, c.localSize = e.LocalRank, e.LocalSize
	} else if e.LocalRank != 0 {
		return nil, fmt.Errorf("%w: config: LocalRank is %d but LocalSize is 0", ErrIncomplete, e.LocalRank)
	}
	return c, nil
}

// fromEnvironment chooses among GOLLECTIVE_* and the launchers, and compares.
func fromEnvironment(env *environment) (*claim, []string, error) {
	own, err := ownVariables(env)
	if err != nil {
		return nil, nil, err
	}
	if own != nil && own.complete() {
		return own, nil, nil
	}
	var found []*claim
	for _, ask := range launchers {
		c, err := ask(env)
		if err != nil {
			return nil, nil, err
		}
		if c != nil {
			found = append(found, c)
		}
	}
	chosen, err := firstComplete(own, found)
	if err != nil {
		return nil, nil, err
	}
	if chosen == nil {
		for _, name := range []string{envCommID, envRoot} {
			if env.get(name) != "" {
				return nil, nil, fmt.Errorf("%w: %s says where to meet, but neither %s and %s nor a launcher say which process this is, of how many",
					ErrIncomplete, name, envRank, envSize)
			}
		}
		return &claim{source: "none", size: 1, rankVar: "rank", sizeVar: "size", localSize: 1}, env.strayNotes(), nil
	}
	// Before the comparison: a claim out of its own range is the plainer error.
	if err := chosen.check(); err != nil {
		return nil, nil, err
	}
	if own != nil && own.size != chosen.size {
		return nil, nil, conflict(own.sizeVar, own.size, chosen.sizeVar, chosen.size)
	}
	notes, err := chosen.compare(found)
	return chosen, notes, err
}

// firstComplete returns nil without an error when nothing was found at all.
func firstComplete(own *claim, found []*claim) (*claim, error) {
	var missing []string
	if own != nil {
		missing = append(missing, own.missing)
	}
	for _, c := range found {
		if c.complete() {
			return c, nil
		}
		missing = append(missing, c.missing)
	}
	if len(missing) == 0 {
		return nil, nil
	}
	return nil, fmt.Errorf("%w: %s", ErrIncomplete, strings.Join(missing, "; "))
}

// check holds a complete claim to its own bounds.
func (c *claim) check() error {
	if c.size > maxSize {
		return valuef("%s=%d: at most %d ranks", c.sizeVar, c.size, maxSize)
	}
	if c.rank >= c.size {
		return fmt.Errorf("%w: %s=%d is not below %s=%d", ErrConflict, c.rankVar, c.rank, c.sizeVar, c.size)
	}
	if c.localSize > 0 && (c.localSize > c.size || c.localRank < 0 || c.localRank >= c.localSize) {
		return fmt.Errorf("%w: %s: local rank %d of %d in a world of %d",
			ErrConflict, c.source, c.localRank, c.localSize, c.size)
	}
	return nil
}

// compare holds every other claim against c, which is complete, and takes the
// local rank from one that agrees when c doesn't know it.
func (c *claim) compare(found []*claim) (notes []string, err error) {
	for _, o := range found {
		if o == c {
			continue
		}
		switch {
		case c.agrees(o):
			if c.localSize == 0 && o.localSize > 0 && o.complete() {
				c.localRank, c.localSize = o.localRank, o.localSize
			}
			if c.source == sourceHydra && o.source == sourceSlurm {
				// srun --mpi=pmi2 serves PMI itself.
				c.source = sourceSlurmPMI
			}
		case c.startedWithin(o):
			notes = append(notes, fmt.Sprintf("the variables of %s describe the layer that started %s: not used", o.source, c.source))
		case o.rank >= 0 && o.rank != c.rank:
			return nil, conflict(c.rankVar, c.rank, o.rankVar, o.rank)
		default:
			return nil, conflict(c.sizeVar, c.size, o.sizeVar, o.size)
		}
	}
	return notes, nil
}

// agrees: what o knows is what c knows.
func (c *claim) agrees(o *claim) bool {
	return (o.rank < 0 || o.rank == c.rank) && (o.size == 0 || o.size == c.size)
}

// startedWithin: o can be the layer that started c's launcher once per host. A
// world of c.size with c.localSize of them here has at most
// c.size - c.localSize + 1 hosts.
func (c *claim) startedWithin(o *claim) bool {
	extent := o.size
	if extent == 0 {
		extent = o.rank + 1
	}
	if o.complete() && o.size == 1 && o.rank == 0 {
		return true
	}
	return o.rank >= 0 && o.localSize == 1 && c.localSize > 0 && extent <= c.size-c.localSize+1
}
