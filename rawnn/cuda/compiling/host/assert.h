// The C name of <cassert>.
#pragma once
#include <cassert>
