// Package sdk is what the author of a sluice plugin imports: one type with two methods is a plugin. It is tested with
// go test like any other code, and built for the sandbox with
//
//	GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -ldflags='-s -w' -o NAME.wasm
//
// A plugin is a pure function: the same request gives the same answer, on every node, however often it is asked. It
// has no clock but Request.Now, and no memory but the state that it returns.
package sdk

// Plugin decides which endpoints of a Service port get new connections. One Plugin is used by one goroutine at a
// time, and a fresh one is made each time settings are given.
type Plugin interface {
	// Configure takes the policy's settings, JSON text or nothing, before the first Decide. Settings reads them.
	Configure(settings []byte) error
	// Decide answers a request. What it says nothing about stays as it came: endpoints keep the weight that they
	// came with. Neither argument may be kept. After an error or a panic the host discards the plugin's instance
	// and keeps the last good decision.
	Decide(req *Request, resp *Response) error
}

// Needer is a Plugin that needs inputs which cost the host something. Needs is asked of a Plugin that is not
// configured, and is constant.
type Needer interface {
	Needs() Need
}

// Need is a set of inputs.
type Need uint32

// Inputs that a host provides on request only.
const (
	// NeedConnections and NeedMetadata are reserved for Endpoint.Connections and Endpoint.Metadata. No host provides
	// them yet: it refuses to load a plugin that needs either.
	NeedConnections Need = 1 << 0
	NeedMetadata    Need = 1 << 1
	// NeedNodes asks for Zone.Nodes and Zone.MilliCPU, for which the host lists all Nodes of the cluster.
	NeedNodes Need = 1 << 2
)

// Register makes newPlugin's plugin the one that this module exports. Call it from an init function of package main, whose
// main stays empty: the host calls a guest's exports, and never its main. Outside of the sandbox it does nothing.
func Register(newPlugin func() Plugin) { register(newPlugin) }

// Log writes a line to the host's log at level info; the host limits length and rate. For finding faults: what a
// person should see of a decision belongs into reasons. Outside of the sandbox it does nothing.
func Log(text string) { writeLog(levelInfo, text) }
