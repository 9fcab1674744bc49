package wasm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Plugins that use the index after the last one of something, by the number of the Service port.
const (
	indexC = `#include "sluice.h"
SLUICE_EXPORT("sluice_decide")
int64_t sluice_decide(const sluice_request *req, uint32_t length, sluice_response *resp, uint32_t room) {
	int64_t n = sluice_begin(req, length, resp, room);
	uint32_t i = req->endpoints.count;
	if (n < 0)
		return n;
	switch (req->port) {
	case 0: return sluice_endpoint_at(req, i)->port;
	case 1: return sluice_zone_at(req, req->zones.count)->total;
	case 2: return sluice_outcomes_at(req, i)->attempts;
	case 3: return sluice_pod_value(req, i, 0);
	case 4: return sluice_endpoint_state(req, i)[0];
	case 5: return sluice_new_endpoint_state(resp, i)[0] = 1;
	default: sluice_set(resp, i, 1);
	}
	return sluice_finish(resp, room);
}
`
	indexAS = `import { begin, Request, Response } from "%s";
export { sluice_alloc, sluice_abi_version } from "%[1]s";
export function sluice_decide(req: Request, length: u32, resp: Response, room: u32): i64 {
  const code = begin(req, length, resp, room), i = req.endpointsCount;
  if (code < 0) return code;
  switch (req.port) {
    case 0: return req.endpoint(i).port;
    case 1: return req.zone(req.zonesCount).total;
    case 2: return changetype<usize>(req.outcomes(i));
    case 3: return req.podValue(i, 0);
    case 4: return load<u8>(req.endpointState(i));
    case 5: resp.setEndpointState(i, changetype<usize>(req)); break;
    default: resp.setShare(i, 1);
  }
  return resp.finish();
}
`
)

// An index that is out of range ends the call, and the last line of the log, which the error has, says which index of what.
func TestIndexOutOfRangeIsNamed(t *testing.T) {
	for _, c := range []struct {
		lang, file, source string
		compile            func(testing.TB, string, string) *exec.Cmd
		sdk                bool
	}{
		{"C", "plugin.c", indexC, testenv.Clang, false},
		{"AssemblyScript", "plugin.ts", indexAS, testenv.AssemblyScript, true},
	} {
		t.Run(c.lang, func(t *testing.T) {
			if c.sdk && os.Getenv("SLUICE_TEST_SDK") == "" {
				t.Skip("make test-sdk runs it")
			}
			dir := t.TempDir()
			if c.lang == "AssemblyScript" {
				sdk, err := os.ReadFile("../../../sdk/assemblyscript/sluice.ts")
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, "sluice.ts"), sdk, 0o644)
				}
				if err != nil {
					t.Fatal(err)
				}
				c.source = fmt.Sprintf(c.source, "./sluice")
			}
			file, module := filepath.Join(dir, c.file), filepath.Join(dir, "plugin.wasm")
			if err := os.WriteFile(file, []byte(c.source), 0o644); err != nil {
				t.Fatal(err)
			}
			if msg, err := c.compile(t, file, module).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, msg)
			}
			keys := []string{abi.KeyPodLabel + "tier"}
			needs := uint32(abi.NeedOutcomes | abi.NeedNodes | abi.NeedEndpointState)
			for port, want := range []string{"endpoint 3 of 3", "zone 3 of 3", "endpoint 3 of 3", "endpoint 3 of 3", "endpoint 3 of 3", "endpoint 3 of 3", "endpoint 3 of 3"} {
				req := watched(SampleRequest(3, keys...))
				req.PortNumber = uint16(port)
				var encoder abi.Encoder
				raw := encoder.AppendRequest(nil, req, abi.View{Role: abi.RoleShare, Settings: abi.NoSettings, Needs: needs, Keys: keys})
				g := newSDKGuest(t, c.lang, module)
				g.module.Memory().Write(uint32(g.req), raw)
				_, err := g.module.ExportedFunction("sluice_decide").Call(context.Background(), g.req, uint64(len(raw)), g.resp, sdkRoom)
				if err == nil || g.logged != "sdk: index out of range: "+want {
					t.Errorf("case %d: %v, and logged %q, want the end of the call and %q", port, err, g.logged, want)
				}
			}
		})
	}
}
