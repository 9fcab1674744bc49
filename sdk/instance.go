package sdk

import (
	"errors"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// instance is a configured plugin with the memory that its calls share. It is what runs in the sandbox, and what
// Native runs outside of it.
type instance struct {
	plugin Plugin
	req    Request
	resp   Response
}

// decide answers the request in req into resp. It gives the length of the response, or a negative code and an error.
func (in *instance) decide(req, resp []byte) (int64, error) {
	if err := in.req.view(req); err != nil {
		return abi.CodeBadRequest, err
	}
	if err := in.resp.begin(resp, &in.req); err != nil {
		return abi.CodeNoRoom, err
	}
	if err := in.plugin.Decide(&in.req, &in.resp); err != nil {
		return abi.CodeFailed, err
	}
	if in.req.bad {
		return abi.CodeBadRequest, errText
	}
	return in.resp.finish()
}

func needsOf(p Plugin) uint32 {
	if n, ok := p.(Needer); ok {
		return uint32(n.Needs())
	}
	return 0
}

var errText = errors.New("request: a text of the string table is not within the request")
