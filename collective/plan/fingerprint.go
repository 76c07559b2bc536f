package plan

import (
	"fmt"
	"strings"
)

var kindNames = [kindsCount]struct{ api, tests string }{
	AllReduce:     {"AllReduce", "all_reduce"},
	Reduce:        {"Reduce", "reduce"},
	Broadcast:     {"Broadcast", "broadcast"},
	AllGather:     {"AllGather", "all_gather"},
	ReduceScatter: {"ReduceScatter", "reduce_scatter"},
	AlltoAll:      {"AlltoAll", "alltoall"},
	AlltoAllv:     {"AlltoAllv", "alltoallv"},
	Gather:        {"Gather", "gather"},
	Scatter:       {"Scatter", "scatter"},
	Send:          {"Send", "send"},
	Recv:          {"Recv", "recv"},
	Barrier:       {"Barrier", "barrier"},
}

// String is the name of the function that asks for k: AllReduce, Broadcast, …
func (k Kind) String() string {
	if k >= kindsCount {
		return fmt.Sprintf("Kind(%d)", uint8(k))
	}
	return kindNames[k].api
}

// ParseKind reads a name in nccl-tests' spelling (all_reduce, alltoall, …) or in
// String's, in any case.
func ParseKind(name string) (Kind, error) {
	for k, names := range kindNames {
		if strings.EqualFold(name, names.tests) || strings.EqualFold(name, names.api) {
			return Kind(k), nil
		}
	}
	return 0, fmt.Errorf("unknown collective %q", name)
}

var algorithmNames = [...]string{AutoAlgorithm: "auto", Ring: "ring", Tree: "tree", PointToPoint: "p2p", OneShot: "oneshot", TwoShot: "twoshot"}

// String is auto, ring, tree, p2p, oneshot or twoshot.
func (a Algorithm) String() string {
	if int(a) >= len(algorithmNames) {
		return fmt.Sprintf("Algorithm(%d)", uint8(a))
	}
	return algorithmNames[a]
}

// Algorithms lists those that a caller can choose between, AutoAlgorithm first.
func Algorithms() []Algorithm { return []Algorithm{AutoAlgorithm, Ring, Tree, OneShot, TwoShot} }

// ParseAlgorithm is the inverse of String, in any case.
func ParseAlgorithm(name string) (Algorithm, error) {
	for a, n := range algorithmNames {
		if strings.EqualFold(name, n) {
			return Algorithm(a), nil
		}
	}
	return 0, fmt.Errorf("unknown algorithm %q, want one of %s", name, strings.Join(algorithmNames[:], ", "))
}

var protocolNames = [...]string{AutoProtocol: "auto", Simple: "simple", LL: "ll", LL128: "ll128", Direct: "direct"}

// String is auto, simple, ll, ll128 or direct.
func (p Protocol) String() string {
	if int(p) >= len(protocolNames) {
		return fmt.Sprintf("Protocol(%d)", uint8(p))
	}
	return protocolNames[p]
}

// ParseProtocol is the inverse of String, in any case.
func ParseProtocol(name string) (Protocol, error) {
	for p, n := range protocolNames {
		if strings.EqualFold(name, n) {
			return Protocol(p), nil
		}
	}
	return 0, fmt.Errorf("unknown protocol %q, want one of %s", name, strings.Join(protocolNames[:], ", "))
}

var actionNames = [...]string{
	DoSend:               "send",
	DoSendFromOutput:     "sendFromOutput",
	DoRecv:               "recv",
	DoCopySend:           "copySend",
	DoRecvCopySend:       "recvCopySend",
	DoRecvReduceSend:     "recvReduceSend",
	DoRecvReduceCopy:     "recvReduceCopy",
	DoRecvReduceCopySend: "recvReduceCopySend",
}

// String is NCCL's name of the primitive.
func (a Action) String() string {
	if int(a) >= len(actionNames) {
		return fmt.Sprintf("Action(%d)", uint8(a))
	}
	return actionNames[a]
}

// String describes the call as error texts do, with the arguments that matter to
// its kind: AllReduce(count 1024, float, sum), Send(count 3, half, to 1).
func (s Spec) String() string {
	if s.Kind == Barrier {
		return "Barrier()"
	}
	args := make([]string, 0, 4)
	if s.Kind != AlltoAllv {
		args = append(args, fmt.Sprintf("count %d", s.Count))
	}
	args = append(args, s.Type.String())
	if s.Kind.reduces() {
		args = append(args, s.Op.String())
	}
	switch {
	case s.Kind == Send:
		args = append(args, fmt.Sprintf("to %d", s.Root))
	case s.Kind == Recv:
		args = append(args, fmt.Sprintf("from %d", s.Root))
	case s.Kind.rooted():
		args = append(args, fmt.Sprintf("root %d", s.Root))
	}
	return s.Kind.String() + "(" + strings.Join(args, ", ") + ")"
}

// Fingerprint condenses all fields but InPlace to 64 well-mixed bits, never 0, so
// that any few of the bits tell different calls apart with the probability their
// number promises. Equal calls have equal fingerprints in every process and run.
func (s Spec) Fingerprint() uint64 {
	s = s.normal()
	h := mix(uint64(s.Kind) | uint64(s.Type)<<8 | uint64(s.Op)<<16)
	h = mix(h ^ uint64(s.Count))
	h = mix(h ^ uint64(s.Root))
	if h == 0 {
		return 1
	}
	return h
}

// mix is a bijection of 64-bit words in which each bit of x changes each bit of
// the result with probability one half: SplitMix64's step and finaliser.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
