package meter_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
)

// named returns a name of the binary format.
func named(s string) string { return string([]byte{byte(len(s)) | 0x80, byte(len(s) >> 7)}) + s }

// withCustom returns a module that has nothing but a custom section.
func withCustom(title, content string) []byte {
	return []byte("\x00asm\x01\x00\x00\x00\x00" + named(named(title)+content))
}

func TestProducersAreRead(t *testing.T) {
	go126 := meter.Producer{Field: "language", Name: "Go", Version: "go1.26.0"}
	tool := meter.Producer{Field: "processed-by", Name: "a b", Version: ""}
	language := named("language") + "\x01" + named("Go") + named("go1.26.0")
	for content, want := range map[string][]meter.Producer{
		"":                nil,
		"\x01":            nil,
		"\x01" + language: {go126},
		"\x02" + language + named("processed-by") + "\x01" + named("a b") + named(""): {go126, tool},
		"\x02" + language:                            {go126},
		"\x01" + language[:len(language)-1]:          nil,
		"\x7f" + language:                            nil, // more fields than the limit
		"\x01" + named("x") + "\xff\xff\xff\xff\x0f": nil,
		"\x01" + named("l\x1b[2J") + "\x01" + named("\n") + named("\u202e"): {{Field: "l?[2J", Name: "?", Version: "?"}},
	} {
		if _, info := rewrite(t, withCustom("producers", content)); !slices.Equal(info.Producers, want) {
			t.Errorf("%q: %+v, want %+v", content, info.Producers, want)
		}
	}
	long := named(strings.Repeat("x", 1000))
	_, info := rewrite(t, withCustom("producers", "\x01"+named("l")+"\x02"+long+long+named("n")+named("v")))
	if len(info.Producers) != 2 || len(info.Producers[0].Name) > 210 || info.Producers[1].Name != "n" {
		t.Errorf("%+v", info.Producers)
	}
}
