package bootstrap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/gollective/gollective/internal/handshake"
)

// Control is a process's connection to the others of its job. All methods may
// be called from any goroutine.
type Control struct {
	cfg  Config
	rank int
	size int
	log  *slog.Logger
	self member
	gate *handshake.Gate

	// ctx ends with the Control; dials under way hang on it.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // every goroutine but the deliverer

	mu        sync.Mutex
	peers     []member         // where to dial; no addrs: not known yet
	seenAt    map[int]net.Addr // by rank, the far end of the last link
	described []bool
	about     [][]byte // descriptions
	left      int      // descriptions still to come
	state     []state
	living    int // how many others are alive
	journal   journal
	links     []*link
	dials     map[int]*dialling
	joined    bool
	failure   *Error // why Join can't succeed
	ending    *Error // why Join hasn't succeeded
	closing   bool   // Close has begun: no more of our own messages
	isolated  bool   // closing, quiet, and without a link to a living process
	down      bool   // the goroutines are ending
	closed    chan struct{}
	closeErr  error
	flushes   uint64
	progress  uint64 // grows with every sign that leaving gets on
	backlog   int    // bytes of our own entries in the journal's log

	passing map[int]*passing // by issuer, the token to pass on, if any
	seen    map[int]uint64   // by issuer, the last round that came by
	round   uint64           // of our own tokens
	inRound bool             // our token is under way
	waiting bool             // a round is to start soon
	mending bool             // maintain is to be called soon
	found   []mark           // what it found, to be told with the next

	gathered  uint64 // AllGathers completed here
	gathering map[uint64][][]byte
	gatherErr error
	gatherMu  sync.Mutex // one AllGather at a time

	events  []event
	ready   chan struct{} // one token: events has something, or handler, or the end
	handler *Handler
	ended   chan struct{} // the deliverer has returned

	changed chan struct{} // closed and replaced when anything here changes
}

// state of a process, as this one sees it; it never goes back.
type state uint8

const (
	alive     state = iota
	hasLeft         // said goodbye; may still be linked
	isLost          // died, vanished, or gave up
	longCause = 512
)

// Handler is what a process does with what it is told. The functions are called
// by one goroutine, one after the other, in the order in which things were
// learned; a nil one ignores its kind of news. They may call Tell, but neither
// AllGather nor Close, which wait for others.
type Handler struct {
	// Message is called once for each Tell of another process, in the order of
	// its Tells. message may be kept, and must not be changed.
	Message func(from int, message []byte)
	// Lost is called once for each process that died or vanished without a
	// goodbye; err is a *LostError. A message that it had sent may still follow,
	// on its way through other processes. Lost with this process's own rank means
	// that the others have given it up, after their hosts could not reach it: it
	// hears nothing more.
	Lost func(rank int, err error)
	// Left is called once for each process that said goodbye.
	Left func(rank int)
}

type event struct {
	rank    int
	message []byte
	lost    *LostError
	left    bool
}

// maxBacklog bounds how much of one process's own messages others must keep,
// in bytes. It fills only when a process is stopped or does not keep up.
const maxBacklog = 16 << 20

func newControl(cfg Config) *Control {
	c := &Control{
		cfg: cfg, rank: cfg.Rank, size: cfg.Size, log: cfg.Logger,
		peers: make([]member, cfg.Size), described: make([]bool, cfg.Size), about: make([][]byte, cfg.Size),
		left: cfg.Size, living: cfg.Size - 1, state: make([]state, cfg.Size), journal: newJournal(cfg.Size),
		dials: make(map[int]*dialling), seenAt: make(map[int]net.Addr), closed: make(chan struct{}),
		passing: make(map[int]*passing), seen: make(map[int]uint64),
		gathering: make(map[uint64][][]byte),
		ready:     make(chan struct{}, 1), ended: make(chan struct{}), changed: make(chan struct{}),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	go c.deliverEvents()
	return c
}

// Rank is this process's number in the job, from 0.
func (c *Control) Rank() int { return c.rank }

// Size is the number of processes in the job, the lost ones and those that have
// left included.
func (c *Control) Size() int { return c.size }

// Descriptions is what each process gave to Join, by rank. It must not be changed.
func (c *Control) Descriptions() [][]byte { return c.about }

// Handle says what to do with news. What came before is handled first: nothing
// is lost between Join and Handle. It must be called at most once.
func (c *Control) Handle(h Handler) {
	c.mu.Lock()
	c.handler = &h
	c.mu.Unlock()
	c.signal()
}

// Tell sends a message to all other processes and returns without waiting for
// them. Each that lives receives it, once, after everything that this process
// had told before and everything that it had been told before. At most
// MaxMessage bytes; message may be reused afterwards.
//
// The error is ErrConfig for a message too long, ErrBacklog when maxBacklog
// bytes are still on their way, ErrClosed after Close, or a *LostError with this
// process's own rank.
func (c *Control) Tell(message []byte) error {
	if len(message) > MaxMessage {
		return fmt.Errorf("bootstrap: tell: %w: %d bytes, at most %d", ErrConfig, len(message), MaxMessage)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.speechless(); err != nil {
		return err
	}
	if c.backlog+len(message) > maxBacklog {
		return fmt.Errorf("bootstrap: tell: %w: %d bytes", ErrBacklog, c.backlog)
	}
	c.publish(entryMessage, message)
	return nil
}

// speechless is why this process can't send, or nil.
func (c *Control) speechless() error {
	switch {
	case c.closing:
		return fmt.Errorf("bootstrap: control: %w", ErrClosed)
	case c.state[c.rank] == isLost:
		return &LostError{Rank: c.rank, By: c.rank, Cause: "the other processes have given this one up"}
	}
	return nil
}

// AllGather gives mine, at most MaxMessage bytes, to every process, and returns
// what each gave, by rank, which must not be changed. All processes must call it, the same number of times.
// It fails when one of them is lost (*LostError) or has left (ErrLeft) before it
// called, and when ctx ends; after a failure the calls of different processes no
// longer belong together, so all later calls fail as well.
func (c *Control) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	if len(mine) > MaxMessage-8 {
		return nil, fmt.Errorf("bootstrap: all-gather: %w: %d bytes, at most %d", ErrConfig, len(mine), MaxMessage-8)
	}
	c.gatherMu.Lock()
	defer c.gatherMu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := errors.Join(c.speechless(), c.gatherErr); err != nil {
		return nil, err
	}
	number := c.gathered
	c.publish(entryGather, binary.BigEndian.AppendUint64(nil, number), mine)
	all := c.contributions(number)
	err := c.wait(ctx, func() (bool, error) { return c.complete(all) })
	delete(c.gathering, number)
	if err != nil {
		c.gatherErr = fmt.Errorf("bootstrap: all-gather: %w", err)
		return nil, c.gatherErr
	}
	c.gathered++
	return all, nil
}

// contributions is where those to an AllGather are collected.
func (c *Control) contributions(number uint64) [][]byte {
	all := c.gathering[number]
	if all == nil {
		all = make([][]byte, c.size)
		c.gathering[number] = all
	}
	return all
}

// complete reports whether everyone has contributed, and fails when somebody no
// longer can.
func (c *Control) complete(all [][]byte) (bool, error) {
	done := true
	for r, part := range all {
		switch {
		case part != nil:
		case c.state[r] == isLost:
			return false, &LostError{Rank: r, By: c.rank, Cause: "it had not contributed"}
		case c.state[r] == hasLeft:
			return false, fmt.Errorf("%w: rank %d, before it contributed", ErrLeft, r)
		default:
			done = false
		}
	}
	return done, nil
}

// From here on, everything needs c.mu unless it says otherwise.

// wait returns when cond is true or fails, or when ctx ends. It gives up c.mu
// while it waits.
func (c *Control) wait(ctx context.Context, cond func() (bool, error)) error {
	for {
		if done, err := cond(); done || err != nil {
			return err
		}
		changed := c.changed
		c.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-ctx.Done():
			err = ctx.Err()
		}
		c.mu.Lock()
		if err != nil {
			return err
		}
	}
}

// notify wakes everyone in wait.
func (c *Control) notify() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// publish adds an entry to this process's own stream.
func (c *Control) publish(kind entryKind, parts ...[]byte) {
	e := newEntry(c.rank, c.journal.next(c.rank), kind, parts...)
	c.backlog += len(e.frame)
	c.spread(e, nil)
}

// spread delivers a fresh entry here and passes it on, but not to where it came
// from.
func (c *Control) spread(e *entry, from *link) (gap bool) {
	fresh, gap := c.journal.add(e)
	if !fresh {
		return gap
	}
	for _, l := range c.links {
		if l != from && l.synced {
			l.send(e.frame)
		}
	}
	c.deliver(e)
	c.pump()
	c.coordinate()
	return false
}

// deliver does what an entry says. One that makes no sense is passed on but
// otherwise ignored: it comes from a process that has proved the secret, and
// will show in what it fails to do.
func (c *Control) deliver(e *entry) {
	s := scanner{rest: e.body}
	switch e.kind {
	case entryDescribe:
		m := s.member()
		about := s.bytes()
		if s.ok() && !c.described[e.origin] {
			c.peers[e.origin], c.about[e.origin], c.described[e.origin] = m, about, true
			c.left--
		}
	case entryMessage:
		if e.origin != c.rank {
			c.tellHandler(event{rank: e.origin, message: e.body})
		}
	case entryGather:
		// Nobody begins the call after the next: it would need our next.
		if number := s.u64(); !s.bad && number >= c.gathered && number <= c.gathered+1 && c.gatherErr == nil {
			c.contributions(number)[e.origin] = s.rest
		}
	case entryLost:
		rank := s.u32()
		if !s.bad && rank < uint32(c.size) {
			c.bury(&LostError{Rank: int(rank), By: e.origin, Cause: printable(s.rest)})
		}
	case entryLeft:
		if c.state[e.origin] == alive {
			c.end(e.origin, hasLeft)
			if e.origin != c.rank {
				c.tellHandler(event{rank: e.origin, left: true})
			}
			c.maintainSoon()
		}
	case entryFailed:
		if err, ok := decodeError(e.body, c.size); ok {
			c.gaveUp(e.origin, err)
		}
	}
	c.notify()
}

// end moves a process from alive to one of the other states.
func (c *Control) end(rank int, s state) {
	c.state[rank] = s
	c.progress++
	if rank != c.rank {
		c.living--
	}
}

// lose tells everybody that a process is lost.
func (c *Control) lose(rank int, cause string) {
	if c.state[rank] != alive {
		return
	}
	c.log.Warn("bootstrap: process lost", "rank", rank, "cause", cause)
	if len(cause) > longCause {
		cause = cause[:longCause]
	}
	c.publish(entryLost, binary.BigEndian.AppendUint32(nil, uint32(rank)), []byte(cause))
}

// bury takes note that a process is lost, the first time.
func (c *Control) bury(lost *LostError) {
	r := lost.Rank
	if c.state[r] != alive {
		return
	}
	c.end(r, isLost)
	c.tellHandler(event{rank: r, lost: lost})
	if !c.joined && c.failure == nil {
		c.failure = &Error{Phase: PhaseGather, Rank: r, Reporter: lost.By, Addr: c.peers[r].addr(), Err: ErrLost, Detail: lost.Cause}
	}
	for _, l := range slices.Clone(c.links) {
		if l.peer == r || r == c.rank {
			c.unlink(l)
		}
	}
	c.maintain()
}

// gaveUp handles the word of a process that its Join has failed. To one that is
// still joining it is the same failure; to one that has joined, a loss.
func (c *Control) gaveUp(rank int, err *Error) {
	if rank == c.rank {
		return
	}
	if !c.joined {
		if c.failure == nil {
			c.failure = err
		}
		return
	}
	// Who gave up because of a death is not its cause: that comes first.
	if errors.Is(err.Err, ErrLost) && err.Rank >= 0 && err.Rank < c.size && err.Rank != rank && err.Rank != c.rank {
		c.bury(&LostError{Rank: err.Rank, By: rank, Cause: err.Detail})
	}
	c.bury(&LostError{Rank: rank, By: rank, Cause: err.Error()})
}

// addLink takes over a proven connection, and reports false if there is no use
// for it any more.
func (c *Control) addLink(peer int, l *link) bool {
	if c.down || c.state[peer] == isLost || c.state[c.rank] == isLost {
		l.conn.Close()
		return false
	}
	l.conn.SetDeadline(time.Time{})
	watchHost(l.conn, c.cfg.PeerTimeout)
	l.send(digestFrame(c.journal.digest()))
	if c.ending != nil {
		c.tellWhy(l)
	}
	c.links = append(c.links, l)
	c.seenAt[peer] = l.conn.RemoteAddr()
	c.wg.Add(2)
	go func() {
		defer c.wg.Done()
		l.write()
	}()
	go func() {
		defer c.wg.Done()
		err := l.read(c.size, func(kind frameKind, frame []byte) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.take(l, kind, frame)
		})
		c.mu.Lock()
		defer c.mu.Unlock()
		c.linkEnded(l, err)
	}()
	c.notify()
	c.pump()
	return true
}

// errProtocol ends a link whose peer sends what this process never would; the
// peer itself is not blamed, and is dialled again.
var errProtocol = errors.New("protocol error")

// take does what a frame says.
func (c *Control) take(l *link, kind frameKind, frame []byte) error {
	body := frame[frameHead:]
	s := scanner{rest: body}
	switch kind {
	case frameEntry:
		e, ok := decodeEntry(frame, c.size)
		if !ok {
			return fmt.Errorf("%w: an entry of %d bytes", errProtocol, len(frame))
		}
		if c.spread(e, l) {
			return fmt.Errorf("%w: entry %d of rank %d instead of %d", errProtocol, e.seq, e.origin, c.journal.next(e.origin))
		}
	case frameDigest:
		theirs := s.marks(c.size)
		if !s.ok() || l.synced {
			return fmt.Errorf("%w: a digest of %d bytes", errProtocol, len(frame))
		}
		for _, e := range c.journal.missing(theirs) {
			l.send(e.frame)
		}
		l.synced = true
		c.progress++
		c.notify()
	case frameToken:
		t, ok := decodeToken(body, c.size)
		if !ok {
			return fmt.Errorf("%w: a token of %d bytes", errProtocol, len(frame))
		}
		c.takeToken(t)
	case frameFlush, frameFlushed:
		n := s.u64()
		if !s.ok() {
			return fmt.Errorf("%w: a flush of %d bytes", errProtocol, len(frame))
		}
		if kind == frameFlush {
			l.send(numberFrame(frameFlushed, n))
			return nil
		}
		l.flushed = max(l.flushed, n)
		c.progress++
		c.notify()
	case frameFailed:
		err, ok := decodeError(body, c.size)
		if !ok {
			return fmt.Errorf("%w: a failure of %d bytes", errProtocol, len(frame))
		}
		if c.joined {
			c.lose(l.peer, err.Error())
		} else if c.failure == nil {
			c.failure = err
			c.notify()
		}
	}
	return nil
}

func (c *Control) linked(peer int) *link {
	for _, l := range c.links {
		if l.peer == peer {
			return l
		}
	}
	return nil
}

// unlink drops a link on purpose.
func (c *Control) unlink(l *link) {
	c.links = slices.DeleteFunc(c.links, func(x *link) bool { return x == l })
	l.close()
}

// linkEnded follows the end of a link's reader, whatever the reason.
func (c *Control) linkEnded(l *link, err error) {
	ours := !slices.Contains(c.links, l) // unlink was before
	c.progress++
	c.unlink(l)
	if c.down || ours {
		return
	}
	c.log.Debug("bootstrap: link ended", "peer", l.peer, "err", err)
	if c.state[l.peer] == alive && c.linked(l.peer) == nil {
		if c.joined && l.synced {
			c.reach(l.peer, err)
		} else if c.joined {
			// Its goodbye may have been for after the digest, and be on its way
			// through others: as good as no link.
			c.reach(l.peer, nil)
		} else if c.failure == nil {
			c.lose(l.peer, "its connection ended while the ranks were joining: "+err.Error())
		}
	}
	c.maintain()
	c.pump()
	c.coordinate()
	c.notify()
}

// tellHandler queues news for the deliverer.
func (c *Control) tellHandler(e event) {
	c.events = append(c.events, e)
	c.signal()
}

func (c *Control) signal() {
	select {
	case c.ready <- struct{}{}:
	default:
	}
}

// deliverEvents calls the handler until the Control is down. It must be called
// without c.mu.
func (c *Control) deliverEvents() {
	defer close(c.ended)
	for range c.ready {
		for {
			c.mu.Lock()
			if c.down {
				c.mu.Unlock()
				return
			}
			if c.handler == nil || len(c.events) == 0 {
				c.mu.Unlock()
				break
			}
			h, e := c.handler, c.events[0]
			c.events = c.events[1:]
			c.mu.Unlock()
			h.call(e)
		}
	}
}

func (h *Handler) call(e event) {
	switch {
	case e.lost != nil:
		if h.Lost != nil {
			h.Lost(e.rank, e.lost)
		}
	case e.left:
		if h.Left != nil {
			h.Left(e.rank)
		}
	case h.Message != nil:
		h.Message(e.rank, e.message)
	}
}
