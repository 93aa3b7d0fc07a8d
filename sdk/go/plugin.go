package projhost

import (
	"errors"
	"strconv"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/sdk/go/internal/bridge"
	"github.com/projhost/projhost/sdk/go/json"
)

// Plugin is what a module consists of: its projections. Put it together in a
// function, serve it in an init function, test it with package projhosttest.
type Plugin struct {
	name, version string
	heap          int
	heapSet       bool
	projections   []*projection
	onInit        func(config json.Value) error
	config        []byte

	ctx Ctx
	msg Message
}

// New starts a plugin. Name and version are the plugin's own; an operator may
// deploy it under another name.
func New(name, version string) *Plugin {
	return &Plugin{name: name, version: version, config: []byte("{}")}
}

// OnInit sets a function that reads the operator's config, once, before the
// first message. An error keeps the plugin from starting, with its text.
func (p *Plugin) OnInit(read func(config json.Value) error) { p.onInit = read }

// Heap says how much garbage a batch of messages may make before the module's
// memory grows; the host has to replace an instance whose memory has grown,
// which costs milliseconds. Each MiB, used or not, costs the host up to a tenth
// of a millisecond a batch. The default reaches to the garbage collector's first
// cycle (about 4 MiB), so that even a wasteful plugin does not grow; one that
// makes none, as most using this package do, can do with 256 KiB.
func (p *Plugin) Heap(bytes int) { p.heap, p.heapSet = bytes, true }

// Serve makes p the plugin of this module. Call it from an init function: main
// is never run. Outside Wasm it does nothing.
func Serve(p *Plugin) {
	if served != nil && served != p {
		panic("projhost: a module serves one plugin; put its projections together")
	}
	served = p
}

var served *Plugin

// Manifest returns the plugin's declaration in JSON, as the host sees it.
func (p *Plugin) Manifest() []byte {
	m := p.manifest()
	return m.AppendJSON(nil)
}

func (p *Plugin) manifest() *abi.Manifest {
	m := &abi.Manifest{ABI: 1, Name: p.name, Version: p.version}
	if p.heapSet {
		m.Heap = strconv.Itoa(p.heap>>10) + "KiB"
	}
	for _, projection := range p.projections {
		m.Consumers = append(m.Consumers, projection.declare())
	}
	return m
}

// guest is a plugin seen from the host.
type guest struct{ p *Plugin }

func init() {
	bridge.GuestOf = func(plugin any) bridge.Guest { return guest{plugin.(*Plugin)} }
}

func (g guest) Describe() []byte { return g.p.Manifest() }

func (g guest) Init(config []byte) int32 {
	defer reportPanic()
	p := g.p
	if len(config) > 0 {
		p.config = append([]byte(nil), config...) // the host uses the region again
	}
	if p.onInit == nil {
		return 0
	}
	if err := p.onInit(json.Parse(p.config)); err != nil {
		bridge.Fail(int32(abi.StatusFatal), "config: "+err.Error())
		return int32(abi.StatusFatal)
	}
	return 0
}

func (g guest) Apply(frame []byte) int32 { return g.p.apply(frame) }

func (g guest) Keys(frame []byte) int32 { return g.p.keys(frame) }

// mustNot panics about a mistake in how a plugin is put together, which its
// author meets at the first test or the first start.
func mustNot(what string, err error) {
	if err != nil {
		panic("projhost: " + what + ": " + err.Error())
	}
}

var errNoName = errors.New("it needs a name")
