// The bare loop: the same model and the same bench_step, without cocotb, VPI or an HDL clock. The yardstick for speed.
#include <memory>

#include "Vtop.h"
#include "verilated.h"

int main(int argc, char** argv) {
    auto context = std::make_unique<VerilatedContext>();
    context->commandArgs(argc, argv);
    auto top = std::make_unique<Vtop>(context.get());
    top->clk = 0;
    top->eval();
    while (!top->finished) {
        top->clk = 1;
        top->eval();
        top->clk = 0;
        top->eval();
    }
    top->final();
    return 0;
}
