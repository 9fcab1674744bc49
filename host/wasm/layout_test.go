package wasm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// The C compiler compares each field of sdk/c/sluice.h with sdk/abi.
func TestCHeaderMatchesTheABILayout(t *testing.T) {
	testenv.RequireProgram(t, "clang", "clang")
	var b strings.Builder
	b.WriteString("#include \"sluice.h\"\n#include <stddef.h>\n")
	assertOffset := func(record, field string, at int) {
		fmt.Fprintf(&b, "_Static_assert(offsetof(%s, %s) == %d, \"%s.%s\");\n", record, field, at, record, field)
	}
	size := func(record string, n int) {
		fmt.Fprintf(&b, "_Static_assert(sizeof(%s) == %d, \"%s\");\n", record, n, record)
	}
	for field, at := range map[string]int{
		"magic": abi.ReqMagic, "major": abi.ReqMajor, "minor": abi.ReqMinor, "total": abi.ReqTotal, "header_length": abi.ReqHeaderLength,
		"now_ms": abi.ReqNow, "generation": abi.ReqGeneration, "namespace_id": abi.ReqNamespace, "service_id": abi.ReqService,
		"port_name_id": abi.ReqPortName, "node_id": abi.ReqNode, "zone_id": abi.ReqZone, "port": abi.ReqPort, "protocol": abi.ReqProtocol,
		"family": abi.ReqFamily, "pool": abi.ReqPool, "policy": abi.ReqPolicy, "zone_index": abi.ReqZoneIndex, "affinity_ms": abi.ReqSessionAffinity,
		"endpoints": abi.ReqEndpointsOffset, "zones": abi.ReqZonesOffset, "strings": abi.ReqStringsOffset,
		"state_offset": abi.ReqStateOffset, "state_length": abi.ReqStateLength,
	} {
		assertOffset("sluice_request", field, at)
	}
	for field, at := range map[string]int{
		"address": abi.EndpointAddr, "port": abi.EndpointPort, "zone_index": abi.EndpointZoneIndex, "conditions": abi.EndpointConditions,
		"node_id": abi.EndpointNode, "zone_id": abi.EndpointZone, "weight": abi.EndpointWeight, "prior_weight": abi.EndpointPriorWeight,
		"ready_since_ms": abi.EndpointReadySince, "terminating_since_ms": abi.EndpointTerminatingSince,
		"connections": abi.EndpointConnections, "metadata_id": abi.EndpointMetadata,
	} {
		assertOffset("sluice_endpoint", field, at)
	}
	for field, at := range map[string]int{"zone_id": abi.ZoneName, "nodes": abi.ZoneNodes, "ready": abi.ZoneReady, "millicores": abi.ZoneMilliCPU} {
		assertOffset("sluice_zone", field, at)
	}
	for field, at := range map[string]int{"id": abi.StringID, "offset": abi.StringOffset, "length": abi.StringLength} {
		assertOffset("sluice_string", field, at)
	}
	for field, at := range map[string]int{
		"magic": abi.RespMagic, "total": abi.RespTotal, "header_length": abi.RespHeaderLength, "results": abi.RespResultsOffset,
		"requeue_ms": abi.RespRequeueAfter, "balance": abi.RespBalance, "state_offset": abi.RespStateOffset, "state_length": abi.RespStateLength,
		"reasons_offset": abi.RespReasonsOffset, "reasons_count": abi.RespReasonsCount,
	} {
		assertOffset("sluice_response", field, at)
	}
	for field, at := range map[string]int{"weight": abi.ResultWeight, "flags": abi.ResultFlags, "reset_after_ms": abi.ResultResetAfter, "reason": abi.ResultReason} {
		assertOffset("sluice_result", field, at)
	}
	size("sluice_request", abi.ReqSize)
	size("sluice_endpoint", abi.EndpointSize)
	size("sluice_zone", abi.ZoneSize)
	size("sluice_string", abi.StringSize)
	size("sluice_response", abi.RespSize)
	size("sluice_result", abi.ResultSize)
	file := filepath.Join(t.TempDir(), "layout.c")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("clang", "--target=wasm32", "-ffreestanding", "-fsyntax-only", "-I", "../../sdk/c", file)
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, msg)
	}
}
