// Package sdk is for authors of sluice plugins in Go. A plugin is a type with two methods. It is unit-tested with go
// test (package sdktest) and built for the sandbox with
//
//	GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -ldflags='-s -w' -o NAME.wasm
//
// A plugin is a pure function: equal requests get equal responses, on every node and at every call. Its only clock is
// Request.Now, and its only memory between calls is the state that it returns with Response.SetState.
package sdk

// Plugin decides which endpoints of a Service port get new connections. A Plugin is used by one goroutine at a time. The
// host creates a new one each time it passes settings.
type Plugin interface {
	// Configure receives the policy's settings, a JSON object or nothing, before the first Decide. See
	// UnmarshalSettings.
	Configure(settings []byte) error
	// Decide fills in the response to a request. Endpoints for which it sets nothing keep their weight. It must not
	// retain req or resp. After an error or a panic the host discards the plugin instance and keeps the last good
	// decision.
	Decide(req *Request, resp *Response) error
}

// Needer is implemented by a Plugin that needs inputs which the host does not provide by default. Needs is called
// before Configure and must always return the same value.
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

// Register sets the constructor of the plugin that this module exports. Call it from an init function of package main and
// leave main empty: the host calls a module's exports, never its main. Outside the sandbox it does nothing.
func Register(newPlugin func() Plugin) { register(newPlugin) }

// Log writes a line to the host's log at level info, for debugging; the host limits length and rate. To explain a
// decision to users, set reasons instead. Outside the sandbox it does nothing.
func Log(text string) { writeLog(levelInfo, text) }
