package hosts

import (
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

//go:embed vectors/*.json
var vectors embed.FS

// RequestVector is a request with its bytes.
type RequestVector struct {
	Name    string       `json:"name"`
	Text    string       `json:"text"`            // what it shows
	After   string       `json:"after,omitempty"` // name of the vector before it in the same instance, whose string ids go on
	Needs   uint32       `json:"needs"`
	Keys    []string     `json:"keys"`
	Handle  uint32       `json:"handle"` // of the settings
	Request *abi.Request `json:"request"`
	Wire    Hex          `json:"wire"`
}

// ResponseVector is the bytes of a response with what a host must read from it, or the rule by which it must refuse it.
type ResponseVector struct {
	Name       string    `json:"name"`
	Text       string    `json:"text"`
	Conditions []uint32  `json:"conditions"` // of the endpoints of the request
	Wire       Hex       `json:"wire"`
	Want       *Response `json:"want,omitempty"`
	Refused    string    `json:"refused,omitempty"` // a name of Rules
}

// Rules are the reasons for which a host refuses a response: "What a host refuses" in ABI.md.
func Rules() map[string]string {
	return map[string]string{
		"short":         "the response is shorter than its header",
		"magic":         "the magic is wrong",
		"total":         "total is not the length that sluice_decide returned",
		"header-length": "header_length is shorter than the header of version 2.0, not a multiple of 8, or longer than the response",
		"count":         "results.count is not that of the endpoints",
		"stride":        "results.stride is shorter than a record of this version, or not a multiple of 8",
		"section":       "a section is not within the response, after the header, or has states of some endpoints only",
		"balance":       "the algorithm is unknown",
		"state":         "the state is longer than 1024 bytes",
		"reasons":       "there are more than 256 reasons, one is longer than 256 bytes, or all together are longer than 4096",
		"reason":        "a result has a reason that does not exist",
		"printable":     "a reason is not printable UTF-8",
		"group":         "there are more than 64 groups, or a result has a group that does not exist",
		"nothing":       "no eligible endpoint is left with capacity and a share, though the default rules choose one",
	}
}

// RequestVectors returns the golden requests.
func RequestVectors() []RequestVector { return readVectors[RequestVector]("vectors/requests.json") }

// ResponseVectors returns the golden responses.
func ResponseVectors() []ResponseVector { return readVectors[ResponseVector]("vectors/responses.json") }

func readVectors[T any](name string) (out []T) {
	text, err := vectors.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		panic(err) // impossible: it is embedded, and a test reads it
	}
	return out
}

// Hex is bytes that are written as lines of hexadecimal digits, 32 bytes each.
type Hex []byte

// MarshalJSON implements json.Marshaler.
func (h Hex) MarshalJSON() ([]byte, error) {
	lines := []string{}
	for b := h; len(b) > 0; {
		n := min(32, len(b))
		lines = append(lines, hex.EncodeToString(b[:n]))
		b = b[n:]
	}
	return json.Marshal(lines)
}

// UnmarshalJSON implements json.Unmarshaler.
func (h *Hex) UnmarshalJSON(text []byte) error {
	var lines []string
	if err := json.Unmarshal(text, &lines); err != nil {
		return err
	}
	b, err := hex.DecodeString(strings.Join(lines, ""))
	if err != nil {
		return fmt.Errorf("want lines of hexadecimal digits: %w", err)
	}
	*h = b
	return nil
}
