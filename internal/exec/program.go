package exec

import (
	"fmt"

	"github.com/gollective/gollective/collective/plan"
	"github.com/gollective/gollective/internal/ledger"
	"github.com/gollective/gollective/internal/reduce"
	"github.com/gollective/gollective/internal/spin"
	"github.com/gollective/gollective/proto"
	"github.com/gollective/gollective/transport"
)

// Program is a plan bound to one rank's FIFOs: everything that can be decided
// before the buffers are known. It is used by one launch at a time.
type Program struct {
	Plan     *plan.Plan
	kernel   reduce.Kernel // for operations without a scalar of their own
	entry    *ledger.Entry // nil for Send and Recv, which not all ranks make
	identity uint64        // of the call and of how it travels; see Engine.begin
	channels []channel
	short    short

	_ [208]byte // whole lines: another rank's may lie next to it
}

// channel is the bound work of one block.
type channel struct {
	*plan.Channel
	pipes     []proto.Primitives // one per Thread
	transfers []*transfer        // one per Transfer
	meeting   *meeting           // of Direct

	// service is what must be driven for the channel's FIFOs to move: one for all
	// of them, nil if none is needed.
	service spin.Service
}

// adopt takes note of what must be driven for one of the channel's FIFOs.
func (c *channel) adopt(s spin.Service) {
	if s != nil {
		c.service = s
	}
}

// bind resolves the peers of p's steps to FIFOs.
func (e *Engine) bind(p *plan.Plan) (*Program, error) {
	program := &Program{Plan: p, channels: make([]channel, len(p.Channels))}
	if e.config.Chosen != nil {
		e.config.Chosen(p.Spec, p.Choice)
	}
	spec := p.Spec
	if !oneSided(spec.Kind) {
		program.entry = ledger.NewEntry(spec)
		e.ledger.Describe(e.rank, program.entry)
	}
	program.identity = mix(mix(mix(spec.Fingerprint(), uint64(p.Choice.Algorithm)),
		uint64(p.Choice.Protocol)), uint64(p.Choice.Channels))
	// A PreMulSum has its kernel made at each call.
	if spec.Op != reduce.PreMulSum {
		kernel, err := reduce.For(spec.Type, spec.Op, p.Size, reduce.Scalar{})
		if err != nil {
			return nil, err
		}
		program.kernel = kernel
	}
	for i := range p.Channels {
		c := &p.Channels[i]
		bound := channel{Channel: c}
		if c.Direct != nil {
			var err error
			if bound.meeting, err = e.meeting(c.ID); err != nil {
				return nil, err
			}
		}
		for j := range c.Threads {
			pipe, err := e.pipe(p, &bound, &c.Threads[j])
			if err != nil {
				return nil, err
			}
			bound.pipes = append(bound.pipes, pipe)
		}
		if err := e.bindTransfers(p, &bound); err != nil {
			return nil, err
		}
		program.channels[i] = bound
	}
	return program, nil
}

// pipe makes the primitives of one thread.
func (e *Engine) pipe(p *plan.Plan, c *channel, t *plan.Thread) (proto.Primitives, error) {
	protocol := p.Choice.Protocol
	if protocol == plan.Direct {
		protocol = p.Instead()
	}
	payload := e.world.Payload[protocol]
	ends := proto.Ends{
		From: make([]*transport.RecvEnd, len(t.From)),
		To:   make([]*transport.SendEnd, len(t.To)),
		Own:  t.Own, Overwritten: t.Overwrites,
	}
	var err error
	for i, peer := range t.From {
		if ends.From[i], err = e.recvEnd(peer, c.ID, transport.Collective, protocol, payload); err != nil {
			return nil, err
		}
		c.adopt(ends.From[i].Service())
	}
	for i, peer := range t.To {
		if ends.To[i], err = e.sendEnd(peer, c.ID, transport.Collective, protocol, payload); err != nil {
			return nil, err
		}
		c.adopt(ends.To[i].Service())
	}
	switch protocol {
	case plan.LL:
		return proto.NewLL(ends), nil
	case plan.LL128:
		return proto.NewLL128(ends), nil
	case plan.Simple:
		return proto.NewSimple(ends, p.Spec.Type.Size(), payload, t.ChunkSteps, t.SliceSteps), nil
	}
	return nil, fmt.Errorf("exec: no primitives for protocol %v", protocol)
}

// endKey names one end of a FIFO from this rank's point of view.
type endKey struct {
	peer, channel int
	use           transport.Use
	protocol      plan.Protocol
}

func (e *Engine) sendEnd(peer, channel int, use transport.Use, protocol plan.Protocol, payload int) (*transport.SendEnd, error) {
	key := endKey{peer, channel, use, protocol}
	if end, ok := e.sendEnds[key]; ok {
		return end, nil
	}
	conn, err := e.connect(e.rank, peer, key, payload)
	if err != nil {
		return nil, err
	}
	end := transport.NewSendEnd(conn, peer)
	e.sendEnds[key] = end
	return end, nil
}

func (e *Engine) recvEnd(peer, channel int, use transport.Use, protocol plan.Protocol, payload int) (*transport.RecvEnd, error) {
	key := endKey{peer, channel, use, protocol}
	if end, ok := e.recvEnds[key]; ok {
		return end, nil
	}
	conn, err := e.connect(peer, e.rank, key, payload)
	if err != nil {
		return nil, err
	}
	end := transport.NewRecvEnd(conn, peer)
	e.recvEnds[key] = end
	return end, nil
}

func (e *Engine) connect(from, to int, key endKey, payload int) (*transport.Conn, error) {
	slot := 0
	switch key.protocol {
	case plan.Simple:
		slot = proto.SlotBytesSimple(payload)
	case plan.LL:
		slot = proto.SlotBytesLL(payload)
	case plan.LL128:
		slot = proto.SlotBytesLL128(payload)
	}
	link := transport.Link{
		From: from, To: to,
		Channel: key.channel,
		Use:     key.use,
		Lane:    uint8(key.protocol),
		Slot:    slot,
	}
	end := transport.Producer
	if to == e.rank {
		end = transport.Consumer
	}
	return reach(e, e.connecting, key.peer, func() (*transport.Conn, error) { return e.transport.Connect(link, end) })
}

// mix folds v into h (the finaliser of splitmix64 over their sum).
func mix(h, v uint64) uint64 {
	h += v + 0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
