package abiconformance

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// guard is the length in bytes of what follows a buffer and must not change.
const guard = 64

// errBounds is the error of a guest that writes where it must not.
var errBounds = errors.New("it writes beyond a buffer")

// guest is an instance with its buffers.
type guest struct {
	in      *wasm.Instance
	view    abi.View
	encoder abi.Encoder
	decoder abi.Decoder

	request, response         uint32 // addresses
	requestSize, responseSize int    // with a guard
}

// answer is a valid response.
type answer struct {
	abi.Response
	wire []byte
	fuel int64
}

// open returns a configured instance.
func (c *check) open() (*guest, error) {
	in, err := c.plugin.NewInstance()
	if err != nil {
		return nil, err
	}
	g := &guest{in: in}
	if g.view, err = in.Configure(c.settings); err != nil {
		in.Close()
		return nil, err
	}
	c.guests = append(c.guests, g)
	return g, nil
}

// ensure makes a buffer at least n bytes long, and as much as a guard.
func (g *guest) ensure(address *uint32, size *int, n int) (err error) {
	if n += guard; n > *size {
		*size = n + n/2
		*address, err = g.in.Alloc(*size)
	}
	return err
}

// ask returns the answer to a request.
func (g *guest) ask(req *abi.Request) (*answer, error) {
	return g.askWire(g.encoder.AppendRequest(nil, req, g.view), len(req.Endpoints))
}

// askWire returns the answer to a request for n endpoints.
func (g *guest) askWire(wire []byte, n int) (*answer, error) {
	return g.askRoom(wire, n, abi.MaxResponse(n))
}

// askRoom is askWire with a response of at most room bytes.
func (g *guest) askRoom(wire []byte, n, room int) (*answer, error) {
	if err := g.ensure(&g.request, &g.requestSize, len(wire)); err != nil {
		return nil, err
	}
	if err := g.ensure(&g.response, &g.responseSize, max(room, abi.MaxResponse(n))); err != nil {
		return nil, err
	}
	rest := bytes.Repeat([]byte{0xA5}, max(g.requestSize-len(wire), g.responseSize-room))
	if err := errors.Join(
		g.in.Write(g.request, slices.Concat(wire, rest[:g.requestSize-len(wire)])),
		g.in.Write(g.response, slices.Concat(make([]byte, room), rest[:g.responseSize-room])),
	); err != nil {
		return nil, err
	}
	length, fuel, err := g.in.Decide(wasm.Call{Request: g.request, RequestLen: uint32(len(wire)), Response: g.response, ResponseCap: uint32(room), Endpoints: n})
	if err != nil && !errors.Is(err, wasm.ErrCode) {
		return nil, err
	}
	for _, b := range []struct {
		name          string
		address       uint32
		size, n       int
		before, after string
	}{
		{name: "request", address: g.request, size: g.requestSize, n: len(wire)}, {name: "response", address: g.response, size: g.responseSize, n: room},
	} {
		is, readErr := g.in.Read(b.address, b.size)
		if readErr != nil {
			return nil, readErr
		}
		if at := slices.IndexFunc(is[b.n:], func(c byte) bool { return c != 0xA5 }); at >= 0 {
			return nil, fmt.Errorf("%w: byte %d after the end of the %s, which has %d bytes, has changed", errBounds, at, b.name, b.n)
		}
	}
	if err != nil {
		return nil, err
	}
	response, err := g.in.Read(g.response, length)
	if err != nil {
		return nil, err
	}
	a := &answer{wire: response, fuel: fuel}
	a.Reset(n)
	return a, g.decoder.DecodeResponse(a.wire, n, &a.Response)
}
